"""Peers behind pipes: answers, errors, and processes that end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench.decode.peer import ROOT, Peer, PeerError, PeerSubject, Runtime, interpreter, started

SERVED = """
import sys
from bench.decode.peers.protocol import serve

class Tool:
    version = "tool 2"
    def __init__(self, arguments):
        print("chatter of the runtime")
        if arguments.get("refuse"):
            raise ValueError("no such model")
    def prefill(self, tokens):
        return tokens / 1000
    def open(self, batch, cached):
        self.batch = batch
    def steps(self, count):
        if count > 9:
            raise RuntimeError("too many")
        if count == 0:
            sys.stderr.write("out of memory\\n")
            sys.stderr.flush()
            sys.exit(3)
        return [0.5 * self.batch] * count
    def close(self):
        pass

serve(Tool)
"""


def connect(tmp_path: Path, arguments: str = "{}") -> tuple[PeerSubject, subprocess.Popen[str]]:
    errors = (tmp_path / "log").open("w+")
    process = subprocess.Popen(
        [sys.executable, "-c", SERVED, arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )
    try:
        return PeerSubject(process, errors, "tool"), process
    except PeerError:
        process.kill()
        raise


def test_a_peer_answers_through_its_pipe_whatever_its_runtime_prints(tmp_path: Path) -> None:
    subject, process = connect(tmp_path)
    with process:
        assert subject.version == "tool 2"
        assert subject.prefill(256) == 0.256
        subject.open(4, 100)
        assert subject.steps(3) == [2.0, 2.0, 2.0]
        with pytest.raises(PeerError, match="tool: RuntimeError: too many"):
            subject.steps(10)
        # It still answers after an error.
        assert subject.steps(1) == [2.0]
        subject.close()
        process.kill()


def test_a_peer_that_cannot_load_says_why(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="ValueError: no such model"):
        connect(tmp_path, '{"refuse": true}')


def test_a_peer_that_ends_leaves_its_last_words(tmp_path: Path) -> None:
    subject, process = connect(tmp_path)
    with process:
        subject.open(1, 1)
        with pytest.raises(PeerError, match=r"tool ended: .*out of memory"):
            subject.steps(0)
        with pytest.raises(PeerError, match="tool ended"):
            subject.prefill(1)
        process.kill()


def test_a_runtime_without_its_package_is_told(tmp_path: Path) -> None:
    runtime = Runtime("openvino-genai", "openvino_genai")
    python = interpreter(runtime, tmp_path)
    python.parent.mkdir(parents=True)
    # The standard library only: what an environment without the package has.
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" -S "$@"\n')
    python.chmod(0o755)
    peer = Peer("openvino", runtime, "Q4_1")
    with (
        pytest.raises(PeerError, match=r"openvino ended: .*ModuleNotFoundError"),
        started(peer, {}, tmp_path, tmp_path),
    ):
        pass
