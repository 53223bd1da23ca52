"""A worker as a process: it starts, says where it listens, and ends when told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from protos.orchid.v1 import worker_pb2 as pb
from protos.orchid.v1 import worker_pb2_grpc
from tests.contract.worker.serving import PATIENCE_S, one

SCRIPT = """
import json, sys
from pathlib import Path
from worker.__main__ import main
from worker.config import WorkerConfig
settings = json.loads(sys.argv[1])
settings["repository"] = Path(settings["repository"])
settings["models"] = tuple(settings["models"])
main(WorkerConfig(**settings), ready=lambda address: print(address, flush=True))
"""


@contextlib.asynccontextmanager
async def process(
    repository: Path, **settings: object
) -> AsyncIterator[asyncio.subprocess.Process]:
    settings = {
        "repository": str(repository), "models": ["tiny"], "warm_budget_ms": 1, **settings
    }  # fmt: skip
    started = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SCRIPT, json.dumps(settings)),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        yield started
    finally:
        if started.returncode is None:
            started.kill()
            await started.wait()


@pytest.mark.parametrize("how", ["SIGTERM", "SIGINT", "Drain"])
async def test_it_ends_cleanly_with_a_stream_open(repository: Path, how: str) -> None:
    async with process(repository) as worker, asyncio.timeout(2 * PATIENCE_S):
        assert worker.stdout is not None and worker.stderr is not None
        address = (await worker.stdout.readline()).decode().strip()
        async with grpc.aio.insecure_channel(address) as channel:
            stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(channel)
            async for _ in stub.Load(pb.LoadRequest(model="tiny")):
                pass
            stream = stub.Execute()
            await stream.write(pb.ExecuteRequest(batches=[one(1)]))
            answer = await stream.read()
            assert isinstance(answer, pb.ExecuteResponse)
            assert answer.results[0].items[0].status == pb.ITEM_STATUS_OK
            if how == "Drain":
                await stub.Drain(pb.DrainRequest(exit=True))
            else:
                worker.send_signal(getattr(signal, how))
            assert await stream.read() is grpc.aio.EOF
        assert await worker.wait() == 0
        log = (await worker.stderr.read()).decode()
        assert "model=tiny ready" in log and "Traceback" not in log


async def test_a_start_that_cannot_be_is_explained_in_one_line(repository: Path) -> None:
    async with process(repository, models=["nothing"]) as worker, asyncio.timeout(PATIENCE_S):
        _, log = await worker.communicate()
        assert worker.returncode == 1
        assert "unknown model 'nothing'" in log.decode() and "Traceback" not in log.decode()
