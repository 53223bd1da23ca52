"""Where the stock client lives: its protobuf classes collide with ours in one process."""

from __future__ import annotations

import subprocess
import venv
from functools import cache
from pathlib import Path

_HOME = Path(__file__).parents[1] / ".venv-triton"


@cache
def triton_python() -> Path:
    """Interpreter of the client's environment, which is made when it is missing."""
    python = _HOME / "bin" / "python"
    if not (_HOME / ".ready").exists():
        venv.create(_HOME, with_pip=True, clear=True)
        command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "tritonclient[grpc,http]", "numpy"], check=True, timeout=600)
        (_HOME / ".ready").touch()
    return python
