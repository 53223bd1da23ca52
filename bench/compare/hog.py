"""A process that takes a share of one core: `python -m bench.compare.hog --share 0.5`."""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

_REST_S = 0.005


class Hog:
    """A hog that can be started and stopped while a run goes on; a context manager."""

    def __init__(self, share: float, seconds: float) -> None:
        self._command = [sys.executable, "-m", "bench.compare.hog", "--share", str(share)]
        self._command += ["--seconds", str(seconds)]
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the process; it ends by itself after its seconds."""
        self.stop()
        self._process = subprocess.Popen(self._command)

    def stop(self) -> None:
        """Ends the process if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def __enter__(self) -> Hog:
        return self

    def __exit__(self, *error: object) -> None:
        self.stop()


def burn(share: float, seconds: float) -> float:
    """Uses `share` of a core for `seconds`, making up for what others keep it from.

    Returns the CPU seconds used.
    """
    started, cpu = time.monotonic(), time.process_time()
    while (elapsed := time.monotonic() - started) < seconds:
        if time.process_time() - cpu >= share * elapsed:
            time.sleep(_REST_S)
    return time.process_time() - cpu


def main() -> None:
    """Burns as the command line says."""
    parser = argparse.ArgumentParser(prog="bench.compare.hog")
    parser.add_argument("--share", type=float, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    options = parser.parse_args()
    burn(options.share, options.seconds)


if __name__ == "__main__":
    main()
