#!/usr/bin/env bash
# Builds and runs the C++ tests with AddressSanitizer and UndefinedBehaviorSanitizer.
# Usage: run_sanitized.sh PYTHON, an interpreter that has onnxruntime, pybind11 and ninja.
set -euo pipefail

python=$1
source_dir=$(cd "$(dirname "$0")/.." && pwd)
build_dir=$source_dir/../build/sanitized
export PATH="$(dirname "$python"):$PATH"

cmake -S "$source_dir" -B "$build_dir" -G Ninja \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DPython_EXECUTABLE="$python" \
  -DORCHID_SANITIZE=ON -DORCHID_BUILD_TESTS=ON -DORCHID_BUILD_BINDINGS=OFF
cmake --build "$build_dir"

# ONNX Runtime keeps its environment for the life of the process; only our own leaks count.
export LSAN_OPTIONS="suppressions=$source_dir/tests/leaks.supp:print_suppressions=0"
export UBSAN_OPTIONS="print_stacktrace=1"
ctest --test-dir "$build_dir" --output-on-failure
