"""Where a local cluster's status page is served, decided before the control plane starts."""

from __future__ import annotations

import importlib.util
import socket
from collections.abc import Callable
from dataclasses import dataclass

DEFAULT_PAGE = "127.0.0.1:8901"
OFF = "off"
# What the extra `http` brings; the control plane imports them, the launcher only looks.
_PACKAGES = ("httptools", "starlette", "uvicorn")


@dataclass(frozen=True, slots=True)
class PagePlan:
    """`listen` is host:port, "" for nowhere; `why` is what to tell when nobody asked for that."""

    listen: str
    why: str = ""


def page_plan(
    asked: str | None,
    configured: str,
    *,
    missing: Callable[[], str] | None = None,
    is_free: Callable[[str], bool] | None = None,
) -> PagePlan:
    """Where to serve the page: as `asked`, else as `configured`, else on loopback.

    Nobody asked for the last one, so a missing extra leaves it out, and a port that is taken
    (another cluster's, perhaps) makes it any free one.
    """
    if asked is not None:
        return PagePlan("" if asked == OFF else asked)
    if configured:
        return PagePlan(configured)
    absent = (missing or missing_package)()
    if absent:
        return PagePlan("", f"no status page: package {absent!r} of the extra `http` is missing")
    if not (is_free or _is_free)(DEFAULT_PAGE):
        host = DEFAULT_PAGE.rpartition(":")[0]
        return PagePlan(f"{host}:0", f"{DEFAULT_PAGE} is taken: the status page is elsewhere")
    return PagePlan(DEFAULT_PAGE)


def missing_package() -> str:
    """A package that the page needs and is not installed; empty when all are."""
    absent = (name for name in _PACKAGES if importlib.util.find_spec(name) is None)
    return next(absent, "")


def _is_free(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_server((host, int(port))):
            return True
    except OSError:
        return False
