#!/usr/bin/env bash
# Checks configuration and rules with promtool, and runs the rules' unit tests.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v promtool > /dev/null; then
    echo "promtool is missing: install Prometheus (Debian: apt-get install --no-install-recommends prometheus)" >&2
    exit 1
fi
promtool check config prometheus.yml
promtool test rules rules_test.yml
