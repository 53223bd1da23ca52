"""Notices workers that fell silent, or sit on a run far longer than it should take."""

from __future__ import annotations

from controlplane.policy.hands import Flight

_MS = 1_000_000
# Silence beyond this many predicted services, or report intervals, is suspect.
_SILENT_SERVICES = 3
_SILENT_REPORTS = 3
# Suspecting the last worker of a pool refuses everything and helps nobody, so it is done
# only when the silence is too long for a busy machine.
_SILENT_REPORTS_LAST = 20
# While a worker takes a large input off the wire its loop does little else; on a busy
# machine that is some 40 MB/s.
_NS_PER_BYTE = 25
# A worker that reports while its run does not end is given much longer: the machine may
# be slow, and what it runs cannot be had back.
_OVERDUE_SERVICES = 10
_OVERDUE_REPORTS = 20


def silence_limit_ns(
    running: Flight | None, report_interval_ms: int, *, last: bool = False, carried_bytes: int = 0
) -> int:
    """Silence after which a worker is suspect: `max(3 p_running, 3 report intervals)`.

    For the `last` trusted worker of a pool it is 20 intervals. `carried_bytes` of tensors
    on their way to the worker add the time that moving them takes.
    """
    predicted = running.predicted_ns if running is not None else 0
    reports = _SILENT_REPORTS_LAST if last else _SILENT_REPORTS
    usual = max(int(_SILENT_SERVICES * predicted), reports * report_interval_ms * _MS)
    return usual + carried_bytes * _NS_PER_BYTE


def overdue_limit_ns(running: Flight, report_interval_ms: int) -> int:
    """Run time after which a worker that still reports is suspect."""
    reports = _OVERDUE_REPORTS * report_interval_ms * _MS
    return max(_OVERDUE_SERVICES * running.predicted_ns, reports)


def suspicion(
    running: Flight | None,
    heard_ns: int,
    now_ns: int,
    report_interval_ms: int,
    *,
    last: bool = False,
    carried_bytes: int = 0,
) -> tuple[bool, int]:
    """Whether a worker is suspect now, and the time at which to look again otherwise."""
    silent_at = heard_ns + silence_limit_ns(
        running, report_interval_ms, last=last, carried_bytes=carried_bytes
    )
    if running is None:
        return now_ns >= silent_at, silent_at
    overdue_at = running.started_ns + overdue_limit_ns(running, report_interval_ms)
    overdue_at += carried_bytes * _NS_PER_BYTE
    return now_ns >= min(silent_at, overdue_at), min(silent_at, overdue_at)
