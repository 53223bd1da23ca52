"""Other runtimes: their environments, their models, and a process for each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import bench

ROOT = Path(bench.__file__).resolve().parent.parent
FOLDER = ".venv-peers"
_ERROR_LINES = 3

Notify = Callable[[str], None]


class PeerError(Exception):
    """A runtime that cannot be installed, loaded or measured; the text says why."""


@dataclass(frozen=True, slots=True)
class Runtime:
    """A package, the program that drives it, and what building the package takes."""

    package: str
    module: str
    environment: Mapping[str, str] = field(default_factory=dict)
    note: str = ""


@dataclass(frozen=True, slots=True)
class Peer:
    """One compared runtime with one form of the model's weights."""

    name: str
    runtime: Runtime
    weights: str


_LLAMA_CPP = Runtime(
    "llama-cpp-python",
    "llama_cpp",
    {"CMAKE_ARGS": "-DGGML_NATIVE=ON -DLLAVA_BUILD=OFF"},
    "compiles for about ten minutes",
)
PEERS = (
    Peer("llamacpp_q4_0", _LLAMA_CPP, "Q4_0"),
    Peer("llamacpp_q4_1", _LLAMA_CPP, "Q4_1"),
    Peer("openvino", Runtime("openvino-genai", "openvino_genai"), "Q4_1"),
    Peer("ortgenai", Runtime("onnxruntime-genai", "onnxruntime_genai"), "int4"),
)


def interpreter(runtime: Runtime, root: Path = ROOT) -> Path:
    """The Python of a runtime's environment, which may not exist yet."""
    return root / FOLDER / runtime.module / "bin" / "python"


def is_installed(runtime: Runtime, root: Path = ROOT) -> bool:
    """Whether the environment was finished."""
    return _marker(runtime, root).exists()


def install(runtime: Runtime, notify: Notify, root: Path = ROOT) -> None:
    """Make a runtime's environment from the configured registry; does nothing when it is there.

    Raises PeerError with the client's last lines when it cannot be made.
    """
    if is_installed(runtime, root):
        return
    notify(f"installing {runtime.package}" + (f": {runtime.note}" if runtime.note else ""))
    python = interpreter(runtime, root)
    if not python.exists():
        venv.create(python.parent.parent, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "numpy", runtime.package],
        env=os.environ | runtime.environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise PeerError(f"{runtime.package} does not install: {_last_lines(done.stderr)}")
    _marker(runtime, root).touch()


class PeerSubject:
    """A runtime in a process of its own; see Subject. Any call raises PeerError when it fails."""

    def __init__(self, process: subprocess.Popen[str], errors: IO[str], name: str) -> None:
        self._process = process
        self._errors = errors
        self._name = name
        self.version = str(self._answer())

    def prefill(self, tokens: int) -> float:
        """See Subject."""
        return float(self._call("prefill", tokens=tokens))

    def first_token(self, number: int, tokens: int) -> int:
        """See Subject."""
        return int(self._call("first_token", number=number, tokens=tokens))

    def open(self, batch: int, cached: int) -> None:
        """See Subject."""
        self._call("open", batch=batch, cached=cached)

    def steps(self, count: int) -> list[float]:
        """See Subject."""
        return [float(value) for value in self._call("steps", count=count)]

    def close(self) -> None:
        """See Subject."""
        self._call("close")

    def _call(self, name: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps({"call": name, "arguments": arguments}) + "\n")
            self._process.stdin.flush()
        except OSError:
            pass  # It has ended; its answer is missing and its last words are told below.
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise PeerError(f"{self._name} ended: {_last_lines(self._errors.read())}")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(f"{self._name}: {answer['error']}")
        return answer.get("result")


@contextmanager
def started(
    peer: Peer, arguments: Mapping[str, Any], scratch: Path, root: Path = ROOT
) -> Iterator[PeerSubject]:
    """A peer's process with its model loaded. Raises PeerError when it does not come up."""
    command = [
        str(interpreter(peer.runtime, root)),
        "-m",
        f"bench.decode.peers.{peer.runtime.module}",
    ]
    with (
        (scratch / f"{peer.name}.log").open("w+") as errors,
        subprocess.Popen(
            [*command, json.dumps(dict(arguments))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        ) as process,
    ):
        try:
            yield PeerSubject(process, errors, peer.name)
        finally:
            process.kill()


def _marker(runtime: Runtime, root: Path) -> Path:
    return root / FOLDER / runtime.module / ".ready"


def _last_lines(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return " | ".join(lines[-_ERROR_LINES:]) or f"nothing said (python {sys.version_info.minor})"
