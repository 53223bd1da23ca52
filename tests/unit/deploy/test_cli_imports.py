"""Help must come at once: nothing heavy is loaded before a command runs."""

from __future__ import annotations

import json
import subprocess
import sys

_HEAVY = ("numpy", "grpc", "pydantic", "onnx", "tokenizers", "matplotlib", "psutil", "yaml")
_PROGRAM = f"""
import sys
from deploy.cli import app
import json
print(json.dumps([name for name in {_HEAVY!r} if name in sys.modules]))
"""


def test_the_command_line_loads_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True
    )
    assert json.loads(done.stdout) == []
