"""How sure a model's variants are, and where cascades may rest on it, as rich tables."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from worker.models.calibration import Escalation
from worker.models.manifest import Manifest
from worker.models.populations import CLEAR_SUFFIX, RATED_LABELS

_LEGEND = (
    "temp. and map make confidences of scores, error is how far they are from the truth "
    "on n items; asks: variants that may answer after it; gain: accuracy that the best of them "
    "adds where it is least sure"
)


def confidence_tables(manifest: Manifest) -> Iterator[RenderableType]:
    """Every calibration with what escalating from it gains most, then where cascades are off."""
    if manifest.task != "text-classification" or len(manifest.variants) < 2:
        return
    if any(variant.calibrations for variant in manifest.variants):
        yield _table(manifest)
        yield Text(_LEGEND, style="dim")
    else:
        yield Text(f"cascades off: confidence is not measured; `{_measured_by(manifest)}` does")
        return
    if lines := cascades_off(manifest):
        yield Text("\n".join(lines))


def _measured_by(manifest: Manifest) -> str:
    """The command for this model: the rated sets have labels of their own."""
    if manifest.labels == RATED_LABELS:
        return f"orchid models evaluate {manifest.name}"
    return f"orchid profile {manifest.name} --calibrate FILE"


def cascades_off(manifest: Manifest) -> list[str]:
    """Return a line for each population, or first stage on it, without cascades: which and why."""
    lines = []
    for population in _populations(manifest):
        found = [
            (variant.name, item)
            for variant in manifest.variants
            for item in variant.escalations
            if item.population == population
        ]
        able = {name for name, item in found if item.gains}
        reasons = {f"{name}: {item.refused}" for name, item in found if name not in able}
        if not any(variant.calibration(population) for variant in manifest.variants):
            lines.append(f"cascades off for {population}: confidence is not measured")
        elif not found:
            lines.append(f"cascades off for {population}: no variant is surely the more accurate")
        elif not able:
            lines.append(f"cascades off for {population}:")
        lines += [f"  {population}: none from {reason}" for reason in sorted(reasons)]
    return lines


def _populations(manifest: Manifest) -> list[str]:
    """Populations with accuracies, in their order, those of clear items only left out."""
    names = [item.population for variant in manifest.variants for item in variant.quality]
    clear = {name + CLEAR_SUFFIX for name in names}
    return [name for name in dict.fromkeys(names) if name not in clear]


def _table(manifest: Manifest) -> Table:
    """One row a calibration; beside it how many variants may follow, and the one that gains most.

    The gain is of the least sure answers, in accuracy.
    """
    table = Table(box=None, pad_edge=False, header_style="bold dim", padding=(0, 1, 0, 0))
    for heading in ("variant", "population"):
        table.add_column(heading, no_wrap=True)
    for heading in ("temp.", "map", "error", "n", "asks", "gain"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("best", no_wrap=True)
    for variant in manifest.variants:
        for item in variant.calibrations:
            after = [e for e in variant.escalations if e.gains and e.population == item.population]
            best = max(after, key=_mean_gain, default=None)
            table.add_row(
                variant.name,
                item.population,
                f"{item.temperature:.2f}",
                "beta" if item.beta else "",
                f"{item.error:.3f}",
                str(item.n),
                str(len(after)),
                "" if best is None else f"{best.gains[0]:+.2f}",
                "" if best is None else best.to,
            )
    return table


def _mean_gain(escalation: Escalation) -> float:
    """The gain of escalating every answer."""
    weighted = zip(escalation.gains, escalation.counts, strict=True)
    return sum(gain * n for gain, n in weighted) / sum(escalation.counts)
