"""Learning what a worker has: asked again, with growing waits, while it does not tell."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass

import grpc

from controlplane.errors import ControlPlaneError
from controlplane.preprocess import Preprocessor
from controlplane.registry import Registry, WorkerSession
from controlplane.rpc.services import log_fault
from controlplane.rpc.worker_client import Description, WorkerClient
from controlplane.wording import shown

_log = logging.getLogger(__name__)

# Of a cause, whose text is the worker's.
_LONGEST_CAUSE = 200
# Ids whose last cause is remembered, beyond the session that met it.
_MOST_TOLD = 256


@dataclass(frozen=True, slots=True)
class Waits:
    """Before the next try: `first_s`, then twice as long each time, up to `longest_s`."""

    first_s: float = 0.25
    longest_s: float = 15.0

    def wait_s(self, failed: int) -> float:
        """The wait after so many tries, at least one, have failed."""
        return min(self.longest_s, self.first_s * 2.0 ** min(failed - 1, 16))


class Describer:
    """Asks workers for their models and tokenizers. Lives on the event loop.

    Why a worker has not told them is in its session's `trouble`, and logged once for each cause.
    """

    def __init__(
        self, registry: Registry, preprocessor: Preprocessor, waits: Waits | None = None
    ) -> None:
        self._registry = registry
        self._preprocessor = preprocessor
        self._waits = waits or Waits()
        # By worker id: a worker that comes back with the same trouble is not told of again.
        self._told: dict[str, str] = {}

    async def describe(
        self, session: WorkerSession, client: WorkerClient, *, tries: int = 0
    ) -> Description | None:
        """What a worker has, its tokenizers built and kept.

        None when that failed `tries` times; with 0 it is tried for as long as it takes.
        """
        failed = 0
        while True:
            try:
                description = await client.describe(tokenizers=True)
                await self._preprocessor.prepare(description.tokenizers)
            except Exception as error:
                # Whatever a worker sends, the others are served.
                self._failed(session, error)
            else:
                self._succeeded(session)
                for sha256, document in description.tokenizers.items():
                    self._registry.add_tokenizer(sha256, document)
                return description
            failed += 1
            if failed == tries:
                return None
            await asyncio.sleep(self._waits.wait_s(failed))

    def _failed(self, session: WorkerSession, error: Exception) -> None:
        identity, cause = session.identity, _cause(error)
        session.trouble = f"does not describe itself: {cause}"
        if self._told.get(identity.id) == cause:
            return
        if len(self._told) >= _MOST_TOLD:
            self._told.clear()
        self._told[identity.id] = cause
        _log.warning(
            "worker %s at %s does not describe itself, trying on: %s",
            *(identity.id, identity.address, cause),
        )
        # A document that is none is a ValueError.
        if not isinstance(error, grpc.aio.AioRpcError | ControlPlaneError | ValueError):
            log_fault(error)

    def _succeeded(self, session: WorkerSession) -> None:
        session.trouble = ""
        if self._told.pop(session.identity.id, None) is not None:
            _log.info("worker %s describes itself now", session.identity.id)


def _cause(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {shown(error.details() or '', _LONGEST_CAUSE)}"
    return f"{type(error).__name__}: {shown(str(error), _LONGEST_CAUSE)}"
