"""How a request ended, read from its status: the same endings that the simulator counts."""

from __future__ import annotations

import grpc

from bench.sim.result import Ending

_RESOURCE_EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED.value[0]
_DEADLINE_EXCEEDED = grpc.StatusCode.DEADLINE_EXCEEDED.value[0]

# Words of `controlplane/ends.py`; a test holds the two together.
_SHED = "dropped for those behind it"
_AT_THE_DOOR = ("than the fastest eligible variant needs", "had passed", "being tokenised")


def ending_of_failure(code: int, message: str) -> Ending:
    """The ending of a request without an answer.

    REFUSED at the door, SHED when its turn came, LATE when its time ran out (told by the
    server or by the caller's own timer), LOST for every other status and for none (-1).
    """
    if code == _RESOURCE_EXHAUSTED:
        return Ending.SHED if _SHED in message else Ending.REFUSED
    if code == _DEADLINE_EXCEEDED:
        return Ending.REFUSED if any(words in message for words in _AT_THE_DOOR) else Ending.LATE
    return Ending.LOST
