"""Checks that Grafana knows everything that the dashboard says, by Grafana's own types.

    python deploy/observability/check_dashboard.py

Run by `make check-metrics` in an environment that has the package grafana-foundation-sdk, of the
version of the Grafana that deploy/compose starts. What its types do not know is lost on the way
through them, and named here.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.cog.plugins import register_default_plugins
from grafana_foundation_sdk.models.dashboard import Dashboard

DASHBOARD = Path(__file__).with_name("dashboard.json")


def differences(ours: Any, theirs: Any, place: str = "") -> Iterator[str]:
    """Where a document is not what came back, one line each; what was added is no matter."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            if key in theirs:
                yield from differences(value, theirs[key], f"{place}/{key}")
            else:
                yield f"{place}/{key} is unknown to Grafana"
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            yield from differences(one, other, f"{place}/{number}")
    elif ours != theirs:
        yield f"{place} is {ours!r} here and {theirs!r} to Grafana"


def main() -> None:
    """Reads the dashboard with Grafana's types and writes it again."""
    register_default_plugins()
    document = json.loads(DASHBOARD.read_text())
    theirs = json.loads(JSONEncoder().encode(Dashboard.from_json(document)))
    found = list(differences(document, theirs))
    for line in found:
        sys.stderr.write(f"{DASHBOARD.name}: {line}\n")
    if found:
        raise SystemExit(1)
    sys.stdout.write(f"{DASHBOARD.name}: {len(document['panels'])} panels, all known to Grafana\n")


if __name__ == "__main__":
    main()
