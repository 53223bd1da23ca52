"""Models as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from deploy.cli.confidence_tables import confidence_tables
from worker.models.dataset import POPULATION
from worker.models.manifest import GENERATION, Fault, FileRef, Manifest
from worker.models.repository import Listing, resident_bytes

if TYPE_CHECKING:
    from worker.models.build import BuildReport

_MIB = 1024 * 1024
# As worker.models.perplexity names it, which would load the engine.
_PERPLEXITY = "perplexity"


def list_table(listings: Sequence[Listing]) -> Table:
    """One row a model."""
    table = _table("model", "version", "task", right=("variants", "best", "MiB"))
    table.add_column("sha256", no_wrap=True)
    for listing in listings:
        manifest = listing.manifest
        if manifest is None:
            table.add_row(listing.name, "", "", "", "", "", Text(listing.fault, style="red"))
            continue
        table.add_row(
            listing.name,
            manifest.version,
            manifest.task,
            str(len(manifest.variants)),
            _best(manifest),
            str(_total(manifest.files.values()) // _MIB),
            manifest.digest.removeprefix("sha256:")[:12],
        )
    return table


def _best(manifest: Manifest) -> str:
    """The best variant's quality; of a language model the perplexity, what others compare with."""
    if manifest.task == GENERATION:
        found = [e.value for v in manifest.variants for e in v.quality if e.metric == _PERPLEXITY]
        return f"ppl {_quality(min(found))}" if found else ""
    best = max((v.quality[0].value for v in manifest.variants if v.quality), default=None)
    return "" if best is None else f"{best:.4f}"


def show_tables(manifest: Manifest) -> Iterator[RenderableType]:
    """The whole of one manifest."""
    yield Text(f"{manifest.name} {manifest.version}, {manifest.task}", style="bold")
    yield Text(manifest.digest)
    if manifest.labels:
        yield Text(f"labels: {', '.join(manifest.labels)}")
    if manifest.floors:
        floors = ", ".join(f"{name} {floor}" for name, floor in sorted(manifest.floors.items()))
        yield Text(f"floors: {floors}")
    for table in (*_variant_tables(manifest), _file_table(manifest)):
        yield Text()
        yield table
    yield Text()
    yield Text(", ".join(f"{key} {value}" for key, value in sorted(manifest.runtime.items())))


def fault_table(name: str, faults: Sequence[Fault]) -> Table:
    """The faults of one model's files."""
    table = Table("file", "expected", "got", title=f"{name}: {len(faults)} faults")
    for fault in faults:
        table.add_row(fault.path, fault.expected, Text(fault.got, style="red"))
    return table


def build_table(report: BuildReport) -> Group:
    """What a build made, measured and refused, and the variants that came of it."""
    made, measured = ", ".join(report.made) or "nothing", ", ".join(report.measured) or "nothing"
    lines = [Text(f"made: {made}"), Text(f"measured: {measured}")]
    lines += [Text(f"not served: {name}: {reason}") for name, reason in report.refused]
    if report.kept:
        lines.append(
            Text(
                f"kept as other code made them: {', '.join(report.kept)}; `orchid models build` "
                "without --small makes them anew"
            )
        )
    unmeasured = [v.name for v in report.manifest.variants if not v.quality]
    if unmeasured:
        lines.append(
            Text(
                f"without evidence, so never routed to: {', '.join(unmeasured)}; "
                f"`orchid models evaluate {report.manifest.name} --population {POPULATION}` "
                "measures them"
            )
        )
    parts: list[RenderableType] = []
    for table in _variant_tables(report.manifest):
        parts += [table, Text()]
    return Group(*parts, *lines, Text(report.manifest.digest))


def _variant_tables(manifest: Manifest) -> Iterator[RenderableType]:
    """What each variant is, then its evidence with 95 % intervals."""
    table = _table("variant", "layout", "precision", "tokenizer", right=("MiB", "max tokens"))
    for variant in manifest.variants:
        table.add_row(
            variant.name,
            variant.layout,
            variant.precision,
            variant.tokenizer,
            f"{resident_bytes(manifest, variant.name) / _MIB:.0f}",
            str(variant.max_tokens or ""),
        )
    yield table
    if not any(variant.quality for variant in manifest.variants):
        yield Text("no quality evidence: the fastest variant answers; floors refuse this model")
        return
    yield evidence_table(manifest)
    yield from confidence_tables(manifest)


def evidence_table(manifest: Manifest) -> Table:
    """The quality of every variant on every population, with 95 % intervals."""
    evidence = _table("variant", "population", "metric", right=("quality", "95 %", "n"))
    evidence.padding = (0, 1, 0, 0)
    for variant in manifest.variants:
        for item in variant.quality:
            interval = f"{_quality(item.low)} to {_quality(item.high)}"
            numbers = (_quality(item.value), interval, str(item.n))
            evidence.add_row(variant.name, item.population, item.metric, *numbers)
    return evidence


def _quality(value: float) -> str:
    """Four decimals of a share or ratio, two of a perplexity."""
    return f"{value:.4f}" if value < 10 else f"{value:.2f}"


def _table(*left: str, right: Sequence[str]) -> Table:
    """Columns without lines, so that names stay whole in a terminal of 80 columns."""
    table = Table(box=None, pad_edge=False, header_style="bold dim")
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _file_table(manifest: Manifest) -> Table:
    table = _table("file", "sha256", right=("bytes",))
    for path, ref in sorted(manifest.files.items()):
        table.add_row(path, ref.sha256[:16], f"{ref.size:,}")
    return table


def _total(files: Iterable[FileRef]) -> int:
    return sum(ref.size for ref in files)
