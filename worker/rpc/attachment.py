"""Which control plane a worker belongs to: only that one may give it work."""

from __future__ import annotations

import asyncio
import contextlib
import socket

from protos.attachment import CONTROLPLANE_KEY
from worker.changes import Changes
from worker.refusals import OtherControlPlane
from worker.rpc.handlers import Context

# A welcome and the first call come over two connections: the call may be the faster one.
_PATIENCE_S = 2.0


class Attachment:
    """The control plane that welcomed the worker last; lives on the event loop.

    Two control planes over one worker would each plan with what it does not know the other sent.
    Callers that do not say which control plane they are, such as benches, are none.
    """

    def __init__(self) -> None:
        self.controlplane = ""
        self._changes = Changes()

    def welcomed(self, controlplane_id: str) -> None:
        """The worker is a member of this control plane from now on, and of no other."""
        if controlplane_id != self.controlplane:
            self.controlplane = controlplane_id
            self._changes.notify()

    async def check(self, context: Context) -> str:
        """The calling control plane's id, empty when it says none.

        Raises OtherControlPlane when the worker belongs to another one.
        """
        metadata = dict(context.invocation_metadata() or ())
        return await self.check_id(str(metadata.get(CONTROLPLANE_KEY, "")))

    async def check_id(self, said: str) -> str:
        """The same for a caller that says this id, empty for none."""
        if not said or self.controlplane in ("", said):
            return said
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_PATIENCE_S):
                while self.controlplane != said:
                    await self._changes.wait(self._changes.version)
        if self.controlplane != said:
            raise OtherControlPlane(
                f"this worker belongs to control plane {self.controlplane!r} and takes no work "
                f"from {said!r}: a worker has one queue to pull from"
            )
        return said


async def addresses_behind(target: str) -> frozenset[str]:
    """The hosts that a `host:port` stands for, of the family with most; empty when none is known.

    More than one control plane behind a name share the workers out by chance.
    """
    host, _, port = target.rpartition(":")
    if not host or target.startswith("unix:") or not port.isdigit():
        return frozenset()
    try:
        found = await asyncio.get_running_loop().getaddrinfo(
            host.strip("[]"), int(port), type=socket.SOCK_STREAM
        )
    except OSError:
        return frozenset()
    families: dict[int, set[str]] = {}
    for family, _, _, _, address in found:
        families.setdefault(family, set()).add(str(address[0]))
    most: set[str] = max(families.values(), key=len, default=set())
    return frozenset(most)
