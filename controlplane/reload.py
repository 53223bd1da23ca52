"""Another configuration for a process that runs: taken whole, or not at all."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable
from dataclasses import fields

from controlplane.config import ControlPlaneConfig

_log = logging.getLogger(__name__)

# What is held to a new configuration at once; the rest needs a restart.
RELOADED = ("tenants",)


class BadConfig(Exception):
    """The configuration cannot be used; the text says where and why."""


class Reloads:
    """Reads the configuration again when asked to. Lives on the event loop.

    `read` may block and raises BadConfig; `apply` gets what it read and cannot fail. `taken` and
    `refused` count what came of it, `fault` is why the last one was not taken.
    """

    def __init__(
        self,
        config: ControlPlaneConfig,
        read: Callable[[], ControlPlaneConfig] | None,
        apply: Callable[[ControlPlaneConfig], None],
    ) -> None:
        self.taken = 0
        self.refused = 0
        self.fault = ""
        self._config = config
        self._read = read
        self._apply = apply
        self._one = asyncio.Lock()
        self._tasks: set[asyncio.Task[bool]] = set()

    def on_signal(self, loop: asyncio.AbstractEventLoop) -> None:
        """Reload whenever the process gets SIGHUP, if there is something to read."""
        if self._read is None:
            return

        def reload() -> None:
            task = loop.create_task(self.reload())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        loop.add_signal_handler(signal.SIGHUP, reload)

    async def reload(self) -> bool:
        """Take the configuration as it is now; False when the old one stays in force."""
        if self._read is None:
            return self._keep("this process was started without a configuration to read again")
        async with self._one:
            try:
                fresh = await asyncio.get_running_loop().run_in_executor(None, self._read)
            except BadConfig as error:
                return self._keep(str(error))
            changed = [
                field.name
                for field in fields(fresh)
                if getattr(fresh, field.name) != getattr(self._config, field.name)
            ]
            self._apply(fresh)
            self._config = fresh
            self.taken += 1
            self.fault = ""
        later = [name for name in changed if name not in RELOADED]
        _log.info(
            "configuration read again: %s",
            ", ".join(name for name in changed if name in RELOADED) or "nothing to take",
        )
        if later:
            _log.warning("changed, but in force only after a restart: %s", ", ".join(later))
        return True

    def _keep(self, fault: str) -> bool:
        self.refused += 1
        self.fault = fault
        _log.error("configuration not taken, the old one stays in force: %s", fault)
        return False
