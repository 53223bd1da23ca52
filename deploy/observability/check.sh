#!/usr/bin/env bash
# Checks configuration and rules with promtool, and runs the rules' unit tests.
set -euo pipefail
cd "$(dirname "$0")"
if ! command -v promtool > /dev/null; then
    echo "promtool is missing: install Prometheus (Debian: apt-get install --no-install-recommends prometheus)" >&2
    exit 1
fi
promtool check config prometheus.yml
# What these name is inside containers.
promtool check config --syntax-only ../compose/prometheus.yml ../compose/prometheus-secured.yml
promtool test rules rules_test.yml
