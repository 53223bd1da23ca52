"""Calls of generations as a control plane sends them."""

from __future__ import annotations

import math

import pytest

from protos.orchid.v1 import worker_pb2
from worker.errors import InvalidInput
from worker.rpc.generation import call_from

SHARES = ("account_weight", "work_price", "account_room")


@pytest.mark.parametrize("name", SHARES)
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan])
def test_shares_that_are_no_numbers_are_refused(name: str, value: float) -> None:
    message = worker_pb2.GenerateCall()
    setattr(message, name, value)
    with pytest.raises(InvalidInput, match=f"{name} is {value}; accepted is at least 0"):
        call_from(message, "v", 0)


def test_a_call_that_names_no_shares_is_a_usual_one() -> None:
    call = call_from(worker_pb2.GenerateCall(), "v", 0)
    assert [getattr(call, name) for name in SHARES] == [1.0, 1.0, 1.0]
