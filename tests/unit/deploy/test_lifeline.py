"""A child ends when its launcher closes its end of the pipe, in whatever way."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys

_CHILD = """
import signal, sys, threading
from deploy import lifeline
lifeline.watch(int(sys.argv[1]))
print("up", flush=True)
threading.Event().wait()
"""

_LAUNCHER = f"""
import os, subprocess, sys
reading, writing = os.pipe()
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}, str(reading)], pass_fds=(reading,),
                         start_new_session=True, stdout=subprocess.PIPE, text=True)
os.close(reading)
child.stdout.readline()
print(child.pid, flush=True)
sys.stdin.read()
"""


def test_the_child_is_told_to_stop_at_end_of_file() -> None:
    reading, writing = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(reading)],
        pass_fds=(reading,),
        stdout=subprocess.PIPE,
        text=True,
    )
    os.close(reading)
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        os.close(writing)
        assert child.wait(10) == -signal.SIGTERM


def test_a_killed_launcher_takes_its_child_along() -> None:
    launcher = subprocess.Popen(
        [sys.executable, "-c", _LAUNCHER],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline())
        handle = os.pidfd_open(pid)
        try:
            launcher.kill()
            ready, _, _ = select.select([handle], [], [], 10)
            assert ready, "the child outlived its launcher"
        finally:
            os.close(handle)
