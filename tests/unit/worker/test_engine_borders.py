"""Who may include ONNX Runtime's headers, use wide instructions, and import the extension."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
CPP = ROOT / "cpp"
PACKAGES = ("controlplane", "worker", "protos", "bench", "deploy")


def sources(pattern: str) -> set[str]:
    found = set()
    for folder in ("include", "src", "bindings", "tests"):
        for file in (CPP / folder).rglob("*"):
            if file.suffix in (".h", ".cpp") and re.search(pattern, file.read_text()):
                found.add(str(file.relative_to(CPP)))
    return found


def test_onnx_runtime_is_included_in_one_place() -> None:
    assert sources(r"#include [<\"]onnxruntime") == {"src/ort/api.h"}
    users = sources(r"#include \"ort/")
    assert users and all(user.startswith("src/ort/") for user in users)


def test_wide_instructions_stay_in_their_own_units() -> None:
    assert sources(r"#include <immintrin.h>") == {
        "src/avx2_math.h",
        "src/avx512_math.h",
        "src/fma_rate_avx2.cpp",
        "src/fma_rate_avx512.cpp",
    }
    for width in ("avx2", "avx512"):
        users = sources(rf"#include \"(.*/)?{width}_math.h\"")
        assert users and all(user.endswith(f"_{width}.cpp") for user in users)


def test_python_is_known_to_the_bindings_only() -> None:
    assert all(name.startswith("bindings/") for name in sources(r"pybind11|Python\.h"))


def test_two_modules_import_the_extension() -> None:
    importers = {
        str(file.relative_to(ROOT))
        for package in PACKAGES
        for file in (ROOT / package).rglob("*.py")
        if re.search(r"^\s*(from|import) .*\b_engine\b", file.read_text(), re.MULTILINE)
    }
    assert importers == {"worker/engine.py", "worker/kv_arena.py"}
