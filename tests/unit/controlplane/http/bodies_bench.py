"""How long reading a JSON body keeps the control plane's event loop: on the loop, and on a thread.

    python -m tests.unit.controlplane.http.bodies_bench

Times are CPU time of the process between two turns of the loop, the longest of a body, median of
nine: what else runs on the machine is not in them. A thread gives way only between two calls into
C, and after the interpreter's switch interval.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import uvloop

from controlplane.http.fields import ChatBody, EmbeddingsBody, Reader, content_list
from controlplane.http.oip_request import InferReader
from controlplane.rpc.asks import LIMITS

_KIB = (64, 256, 512, 1024, 3072)
_ROUNDS = 9
Job = Callable[[bytes], object]


def main() -> None:
    """Print a line for each kind and size of body."""
    generator = np.random.default_rng(1)
    infer, chat, embeddings = InferReader(), Reader(ChatBody), Reader(EmbeddingsBody)

    def rows(raw: bytes) -> int:
        return len(content_list("input", embeddings.read(raw).input, LIMITS.items))

    kinds: tuple[tuple[str, Callable[[np.random.Generator, int], bytes], Job], ...] = (
        ("tensors of numbers", _numbers, lambda raw: infer.read(raw, len(raw))),
        ("token ids", _token_ids, rows),
        ("a long text", _text, chat.read),
    )
    for name, make, job in kinds:
        for kib in _KIB:
            raw = make(generator, kib << 10)
            held = uvloop.run(_compared(raw, job))
            sys.stdout.write(
                f"{name:18} {len(raw) >> 10:5} KiB: {held[0]:6.2f} ms of the loop on the loop, "
                f"{held[1]:6.2f} on a thread\n"
            )


async def _compared(raw: bytes, job: Job) -> tuple[float, float]:
    loop = asyncio.get_running_loop()

    async def here() -> None:
        job(raw)

    with ThreadPoolExecutor(1) as pool:

        async def there() -> None:
            await loop.run_in_executor(pool, job, raw)

        return await _median(here), await _median(there)


async def _median(work: Callable[[], Awaitable[None]]) -> float:
    return statistics.median([await _held_ms(work) for _ in range(_ROUNDS)])


async def _held_ms(work: Callable[[], Awaitable[None]]) -> float:
    """The longest time that the loop did not turn while something worked, in ms."""
    gaps: list[float] = []

    async def turn() -> None:
        last = time.process_time()
        while True:
            await asyncio.sleep(0)
            now = time.process_time()
            gaps.append(now - last)
            last = now

    turning = asyncio.create_task(turn())
    await asyncio.sleep(0.002)
    gaps.clear()
    await work()
    await asyncio.sleep(0)
    turning.cancel()
    return max(gaps) * 1e3


def _numbers(generator: np.random.Generator, size: int) -> bytes:
    values = generator.uniform(-1, 1, size // 11).round(7).tolist()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, len(values)], "data": values}
    return json.dumps({"inputs": [tensor]}).encode()


def _token_ids(generator: np.random.Generator, size: int) -> bytes:
    ids = generator.integers(1000, 30000, (size // (512 * 7), 512)).tolist()
    return json.dumps({"model": "m", "input": ids}).encode()


def _text(generator: np.random.Generator, size: int) -> bytes:
    words = "".join(generator.choice(["word ", "Wörter "], size // 6).tolist())
    body = {"model": "m", "messages": [{"role": "user", "content": words}]}
    return json.dumps(body, ensure_ascii=False).encode()


if __name__ == "__main__":
    main()
