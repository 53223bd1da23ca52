#!/usr/bin/env bash
# Fails when the committed generated code is not what the .proto files give: check.sh BIN
set -euo pipefail
bin=$1
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT
bash protos/generate.sh "$bin" "$fresh"
status=0
while IFS= read -r -d '' file; do
  diff -u "protos/${file#"$fresh"/protos/}" "$file" || status=1
done < <(find "$fresh" -type f -print0)
if [ "$status" -ne 0 ]; then
  echo "protos: generated code is stale; run 'make proto' and commit the result" >&2
fi
exit "$status"
