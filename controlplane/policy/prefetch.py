"""How early a worker gets its next run: late enough to bind late, early enough not to idle."""

from __future__ import annotations


def lead_ns(round_trip_ns: float, predicted_ns: float, sigma: float) -> float:
    """How long before a worker is expected to free it should be given more.

    `lead = round trip + sigma * p`: the message has to travel while the worker is busy,
    and the running work may end one standard deviation early. Runs much shorter than a
    round trip are therefore handed out several at a time, long ones only at the end of
    the one before.
    """
    return round_trip_ns + sigma * predicted_ns


def wants_more(*, held: int, prefetch: int, in_hand_ns: float, lead: float) -> bool:
    """Whether a worker should be given another run now.

    `held` counts the runs it has, at most one running and `prefetch` waiting; `in_hand_ns`
    is the residual of all of them.
    """
    return held == 0 or (held <= prefetch and in_hand_ns <= lead)
