"""Keeps the processes of a cluster alive, on a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from deploy.access import Access
from deploy.fleet import FleetError, fetch_progress
from deploy.members import Members

log = logging.getLogger(__name__)

_POLL_S = 0.05


class Supervisor:
    """Starts again who died, each with a backoff of its own, until it is stopped.

    `overrides` are the control plane's, which keeps its addresses. `changed` is called when
    processes were started and may raise OSError, which it is called again after; `failed` hears of
    what cannot be started. `access` is to the workers.
    """

    def __init__(
        self,
        members: Members,
        *,
        overrides: Callable[[], Mapping[str, Any]],
        changed: Callable[[], None],
        failed: Callable[[str], None],
        access: Access | None,
    ) -> None:
        self._members = members
        self._overrides = overrides
        self._changed = changed
        self._failed = failed
        self._access = access
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._supervise, name="supervisor")

    def start(self) -> None:
        """Begins."""
        self._thread.start()

    def stop(self) -> None:
        """Ends; nothing is started again after it."""
        self._ended.set()
        self._thread.join()

    def _supervise(self) -> None:
        changed, fault = False, ""
        while not self._ended.wait(_POLL_S):
            try:
                changed |= self._members.revive(time.monotonic(), self._overrides, self._failed)
                if changed:
                    self._changed()
                changed, fault = False, ""
            except OSError as error:
                # Whoever asks for the state sees an old one; the processes are kept alive.
                if fault != str(error):
                    log.warning("the state of the cluster cannot be written: %s", error)
                changed, fault = True, str(error)
            self._members.stand_up(self._serves)

    def _serves(self, address: str) -> bool:
        """Whether the worker there serves a model."""
        try:
            models = fetch_progress(address, timeout_s=1.0, access=self._access)
        except FleetError:
            return False
        return any(model.state == "ready" for model in models)
