"""Records made by hand."""

from __future__ import annotations

from typing import Any

from controlplane.records.demand import DECODE, ENCODER, DemandRecord, Use, WorkerSample

S = 1_000_000


def record(at_s: float = 0.0, **changes: Any) -> DemandRecord:
    """An answer in time of tenant "shop" that took 10 CPU-ms, 8 were estimated."""
    made = DemandRecord(
        at_us=round(at_s * S),
        lane=ENCODER,
        model="m",
        tenant="shop",
        request_class="",
        privacy_class="",
        variant="best",
        reason="most-accurate-in-reserve",
        outcome="answered",
        worker="worker-0",
        asked=1,
        weight=1.0,
        on_time=1,
        approximation=0,
        overload_level=0,
        quality=0.9,
        dispatches=1,
        batch=1,
        items=1,
        tokens=12,
        longest=12,
        cached_tokens=0,
        output_limit=0,
        output_tokens=0,
        deadline_us=100_000,
        total_us=14_000,
        queue_us=1_000,
        first_us=0,
        slack_us=98_000,
        price=1.0,
        estimated=Use(preprocess_us=80, compute_us=8_000, transfer_bytes=56),
        measured=Use(preprocess_us=100, compute_us=10_000, transfer_bytes=56),
    )
    return made._replace(**changes)


def generation(at_s: float = 0.0, **changes: Any) -> DemandRecord:
    """An answer of 20 tokens."""
    fields: dict[str, Any] = {
        "lane": DECODE,
        "model": "writer",
        "variant": "q4",
        "output_limit": 40,
        "output_tokens": 20,
        "estimated": Use(prefill_us=20_000, decode_us=100_000, live_token_ms=4_000),
        "measured": Use(prefill_us=22_000, decode_us=90_000, live_token_ms=4_400),
    }
    return record(at_s, **(fields | changes))


def sample(begun_us: int = 1, session: int = 1, **changes: Any) -> WorkerSample:
    """A worker whose runs took 20 CPU-ms, of which 19.8 were charged."""
    made = WorkerSample(
        begun_us=begun_us,
        session=session,
        worker="worker-0",
        lane=ENCODER,
        at_us=S,
        run_cpu_us=20_000,
        process_cpu_us=50_000,
        live_token_ms=0,
        charged_cpu_us=19_800,
        charged_token_ms=0,
    )
    return made._replace(**changes)
