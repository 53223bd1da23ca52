"""Ties a child process to its launcher: when the launcher is gone, so is the child.

The child inherits the reading end of a pipe nobody writes to. The kernel closes the
writing end with the launcher, however that ends, and the child sees end of file.
(PR_SET_PDEATHSIG fires with the *thread* that started the child, which may end sooner.)
"""

from __future__ import annotations

import os
import signal
import threading

_GRACE_S = 5.0


def watch(descriptor: int) -> None:
    """Ends this process by SIGTERM, after a grace period by force, at end of file."""
    threading.Thread(target=_wait, args=(descriptor,), name="lifeline", daemon=True).start()


def _wait(descriptor: int) -> None:
    while os.read(descriptor, 1):
        pass
    os.kill(os.getpid(), signal.SIGTERM)
    threading.Event().wait(_GRACE_S)
    os._exit(1)
