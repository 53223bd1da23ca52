"""The records of a control plane put together: who makes them and where they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from controlplane.config import RecordsConfig
from controlplane.records.demand import DECODE, ENCODER, WorkerSample
from controlplane.records.generations import GenerationRecorder
from controlplane.records.recorder import RequestRecorder, Sampling
from controlplane.records.store import RecordStore
from controlplane.registry import Registry

_LOOK_S = 2.0


class Records:
    """Keeps a record of each request in a file, and beside them what workers say they spent.

    Lives on the event loop but for the store's thread. `wall_offset_ns` turns its clock into time
    since 1970.
    """

    def __init__(
        self,
        config: RecordsConfig,
        registry: Registry,
        *,
        now_ns: Callable[[], int],
        wall_offset_ns: int,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._registry = registry
        self._now_ns = now_ns
        self._wall_offset_ns = wall_offset_ns
        self._begun_us = self._now_us()
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self.store = RecordStore(
            Path(config.file),
            rows=config.rows,
            file_bytes=config.mib << 20,
            begun_us=self._begun_us,
        )
        share = config.share
        self.requests = RequestRecorder(self.store, Sampling(share), wall_offset_ns)
        self.generations = GenerationRecorder(self.store, Sampling(share), wall_offset_ns)

    def start(self) -> None:
        """Begin to write."""
        self.store.start()
        self._look()

    async def close(self) -> None:
        """Write what there is and end."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._sample()
        await asyncio.to_thread(self.store.close)

    def _now_us(self) -> int:
        return (self._now_ns() + self._wall_offset_ns) // 1000

    def _look(self) -> None:
        self._timer = self._loop.call_later(_LOOK_S, self._look)
        self._sample()

    def _sample(self) -> None:
        for session in self._registry.workers():
            tally = session.tally
            self.store.sample(
                WorkerSample(
                    begun_us=self._begun_us,
                    session=session.number,
                    worker=session.identity.id,
                    lane=DECODE if session.identity.decodes else ENCODER,
                    at_us=self._now_us(),
                    run_cpu_us=tally.run_cpu_ns // 1000,
                    process_cpu_us=tally.process_cpu_ns // 1000,
                    live_token_ms=tally.live_token_ms,
                    charged_cpu_us=tally.charged_cpu_ns // 1000,
                    charged_token_ms=tally.charged_token_ms,
                )
            )
