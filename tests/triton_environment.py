"""Where the stock client lives: its protobuf classes collide with ours in one process."""

from __future__ import annotations

import subprocess
import venv
from functools import cache
from pathlib import Path

from worker.models.locking import exclusive

_HOME = Path(__file__).parents[1] / ".venv-triton"


@cache
def triton_python() -> Path:
    """Interpreter of the client's environment, which is made when it is missing."""
    python = _HOME / "bin" / "python"
    # Tests run in several processes.
    with exclusive(_HOME.with_name(".venv-lock")):
        if not (_HOME / ".ready").exists():
            venv.create(_HOME, with_pip=True, clear=True)
            command = [str(python), "-m", "pip", "install", "--quiet"]
            command += ["--disable-pip-version-check", "tritonclient[grpc,http]", "numpy"]
            subprocess.run(command, check=True, timeout=600)
            (_HOME / ".ready").touch()
    return python
