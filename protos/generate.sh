#!/usr/bin/env bash
# Writes generated code for every .proto below ./protos into OUT: generate.sh BIN OUT
set -euo pipefail
bin=$1 out=$2
find protos -name '*.proto' -print0 | sort -z | xargs -0 "$bin/python" -m grpc_tools.protoc -I. \
  --plugin=protoc-gen-mypy="$bin/protoc-gen-mypy" \
  --plugin=protoc-gen-mypy_grpc="$bin/protoc-gen-mypy_grpc" \
  --python_out="$out" --mypy_out=quiet:"$out" --grpc_python_out="$out" --mypy_grpc_out=quiet:"$out"
