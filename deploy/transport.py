"""How gRPC moves bytes in Orchid's processes; its library reads that once, when it is loaded.

By default threads of the library's own wait for the network and pass what comes from one to
another before the completion queue hears of it. Without them the queue's thread waits for the
network itself: two wake-ups less for each message that comes
(docs/decisions/0056-transport-threads.md).
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from importlib.metadata import PackageNotFoundError, version

SWITCH = "GRPC_EXPERIMENTS"
FEWER_THREADS = "-event_engine_client,-event_engine_listener"
# Earlier ones know no other way; later ones may not know these names and would say so.
_FIRST, _LAST = (1, 80), (1, 85)


def choose(environment: MutableMapping[str, str], installed: str | None = None) -> None:
    """Has gRPC use fewer threads, unless the environment says something else or it cannot.

    To be called before the library is imported; child processes inherit it. `installed` is
    the library's version, asked for by default.
    """
    if SWITCH not in environment and _FIRST <= _parsed(installed or _installed()) <= _LAST:
        environment[SWITCH] = FEWER_THREADS


def as_it_comes(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment for a process of ours whose gRPC is to run as it comes."""
    chosen = environment.get(SWITCH) == FEWER_THREADS
    return {**environment, SWITCH: ""} if chosen else dict(environment)


def _installed() -> str:
    try:
        return version("grpcio")
    except PackageNotFoundError:
        return ""


def _parsed(text: str) -> tuple[int, int]:
    major, _, rest = text.partition(".")
    minor = rest.partition(".")[0]
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else (0, 0)
