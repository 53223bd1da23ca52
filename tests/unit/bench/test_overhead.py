"""Path cost is the median of the repeats, and the bare echo relays what it is given."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import grpc
import pytest

from bench.echo import ID_BYTES, STREAM_METHOD, UNARY_METHOD
from bench.overhead import Sample, bare_echo, cases, summarise


def test_ratios_are_of_medians() -> None:
    cpu = {"bare_saturated": 0.5, "orchid_saturated": 0.6, "orchid_stream": 0.2}
    samples = [
        Sample(
            case=case.name,
            repeat=repeat,
            answered_per_s=1000.0,
            cpu_ms=cpu.get(case.name, 1.0) * factor,
            p50_ms={"bare": 1.0, "lean": 0.8, "orchid": 1.2}[case.server] * factor,
            p99_ms=2.0,
            driver_cpu_ms=0.1,
        )
        for case in cases(16)
        for repeat, factor in enumerate((1.0, 1.0, 9.0))
    ]
    summary = summarise(samples)
    assert summary["cpu_ratio"] == pytest.approx(1.2)
    assert summary["p50_ratio"] == pytest.approx(1.2)
    assert summary["lean_p50_ratio"] == pytest.approx(1.5)
    assert summary["stream_cpu_ratio"] == pytest.approx(1 / 3)
    assert summary["rps_per_core"] == pytest.approx(1000 / 0.6)


def test_the_echo_answers_through_both_hops(tmp_path: Path) -> None:
    with bare_echo(tmp_path, b"the answer", os.environ) as (address, pid):
        assert pid > 0
        with grpc.insecure_channel(address) as channel:
            call: Any = channel.unary_unary(UNARY_METHOD)
            answers = [call.future(b"question", timeout=10) for _ in range(20)]
            assert {answer.result() for answer in answers} == {b"the answer"}


def test_the_echo_answers_every_message_of_a_stream_by_its_number(tmp_path: Path) -> None:
    numbers = [number.to_bytes(ID_BYTES, "little") for number in range(20)]
    with (
        bare_echo(tmp_path, b"the answer", os.environ) as (address, _),
        grpc.insecure_channel(address) as channel,
    ):
        call: Any = channel.stream_stream(STREAM_METHOD)
        answers = set(call((b"question" + number for number in numbers), timeout=10))
    assert answers == {number + b"the answer" for number in numbers}
