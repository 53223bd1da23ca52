"""The evidence of cascades as JSON values of a model's document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from controlplane.policy.cascade import Calibration, Escalation, Evidence, faults


def evidence_rows(evidence: Mapping[str, Evidence]) -> list[dict[str, Any]]:
    """One row a population; `classes` are the names under which it is asked for, "" for none."""
    names: dict[str, list[str]] = {}
    for name, each in evidence.items():
        names.setdefault(each.population, []).append(name)
    known = {each.population: each for each in evidence.values()}
    return [
        {
            "population": population,
            "classes": sorted(names[population]),
            "calibrations": {n: c._asdict() for n, c in each.calibrations.items()},
            "escalations": [escalation._asdict() for escalation in each.escalations],
        }
        for population, each in known.items()
    ]


def evidence_of(rows: Any, where: str) -> dict[str, Evidence]:
    """Read what `evidence_rows` made; ValueError says what is wrong with it."""
    found: dict[str, Evidence] = {}
    try:
        for row in rows:
            evidence = Evidence(
                population=str(row["population"]),
                calibrations={
                    str(name): Calibration(float(c["temperature"]), _floats(c["beta"]))
                    for name, c in row["calibrations"].items()
                },
                escalations=tuple(
                    Escalation(
                        first=str(e["first"]),
                        to=str(e["to"]),
                        confidences=_floats(e["confidences"]),
                        gains=_floats(e["gains"]),
                        counts=tuple(int(count) for count in e["counts"]),
                        shares_right=_floats(e["shares_right"]),
                    )
                    for e in row["escalations"]
                ),
            )
            wrong = faults(evidence)
            if wrong:
                raise ValueError("; ".join(wrong))
            found |= {str(name): evidence for name in row["classes"]}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"{where}: evidence of cascades: {error!r}") from None
    return found


def _floats(values: Any) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
