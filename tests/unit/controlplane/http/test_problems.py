"""Every domain error has a status, and a code of its own in OpenAI's form."""

from __future__ import annotations

import json

import pytest

from controlplane import errors
from controlplane.errors import (
    ControlPlaneError,
    InvalidRequest,
    Overloaded,
    Refused,
    Unavailable,
)
from controlplane.http.problems import INTERNAL, InvalidField, problem_of

KINDS = sorted(
    (
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type)
        and issubclass(kind, ControlPlaneError)
        and kind is not ControlPlaneError
    ),
    key=lambda kind: kind.__name__,
)


def made(kind: type[ControlPlaneError]) -> ControlPlaneError:
    if issubclass(kind, Overloaded):
        return kind("why", 40, "overload-deferred")
    return kind("why", 40) if issubclass(kind, Refused | Unavailable) else kind("why")


@pytest.mark.parametrize("kind", KINDS)
def test_no_domain_error_is_an_internal_one(kind: type[ControlPlaneError]) -> None:
    problem = problem_of(made(kind))
    assert 400 <= problem.status < 600
    assert problem.status != 500
    assert json.loads(problem.body()) == {
        "error": {
            "message": "why",
            "type": problem.kind,
            "param": None,
            "code": problem.code,
        }
    }
    assert json.loads(problem.brief()) == {"error": "why"}


def test_codes_tell_errors_apart() -> None:
    codes = [problem_of(made(kind)).code for kind in KINDS]
    assert len(set(codes)) == len(codes)


def test_a_fault_of_ours_keeps_its_text() -> None:
    assert problem_of(KeyError("the caller's words")) == INTERNAL


def test_a_field_is_named_and_a_long_message_cut() -> None:
    problem = problem_of(InvalidField("stop.1", "must be a string"))
    assert (problem.param, problem.message) == ("stop.1", "stop.1: must be a string")
    assert len(problem_of(InvalidRequest("x" * 10_000)).message) < 2100


@pytest.mark.parametrize(("ms", "seconds"), [(1, "1"), (1000, "1"), (1001, "2"), (59_999, "60")])
def test_seconds_to_wait_are_rounded_up(ms: int, seconds: str) -> None:
    headers = problem_of(Refused("full", ms)).headers()
    assert headers == {"retry-after": seconds, "retry-after-ms": str(ms)}
    assert problem_of(Unavailable("gone")).headers() == {}
