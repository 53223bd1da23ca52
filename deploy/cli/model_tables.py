"""Models as rich tables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from worker.models.manifest import Fault, FileRef, Manifest, Variant
from worker.models.repository import Listing, resident_bytes

if TYPE_CHECKING:
    from worker.models.build import BuildReport

_MIB = 1024 * 1024


def list_table(listings: Sequence[Listing]) -> Table:
    """One row a model."""
    table = Table("model", "version", "task")
    for heading in ("variants", "best", "MiB"):
        table.add_column(heading, justify="right")
    table.add_column("digest", overflow="fold")
    for listing in listings:
        manifest = listing.manifest
        if manifest is None:
            table.add_row(listing.name, "", "", "", "", "", Text(listing.fault, style="red"))
            continue
        best = max((v.quality[0].value for v in manifest.variants if v.quality), default=None)
        table.add_row(
            listing.name,
            manifest.version,
            manifest.task,
            str(len(manifest.variants)),
            "" if best is None else f"{best:.4f}",
            str(_total(manifest.files.values()) // _MIB),
            manifest.digest[:19],
        )
    return table


def show_tables(manifest: Manifest) -> Iterator[RenderableType]:
    """The whole of one manifest."""
    yield Text(f"{manifest.name} {manifest.version}, {manifest.task}", style="bold")
    yield Text(manifest.digest)
    if manifest.labels:
        yield Text(f"labels: {', '.join(manifest.labels)}")
    if manifest.floors:
        floors = ", ".join(f"{name} {floor}" for name, floor in sorted(manifest.floors.items()))
        yield Text(f"floors: {floors}")
    yield variant_table(manifest)
    yield _file_table(manifest)
    yield Text(", ".join(f"{key} {value}" for key, value in sorted(manifest.runtime.items())))


def variant_table(manifest: Manifest) -> Table:
    """One row a variant and population, with the 95 % interval of its quality."""
    table = Table("variant", "layout", "precision", "tokenizer")
    for heading in ("MiB", "max tokens"):
        table.add_column(heading, justify="right")
    table.add_column("population")
    for heading in ("quality", "95 %", "n"):
        table.add_column(heading, justify="right")
    for variant in manifest.variants:
        for row in _variant_rows(manifest, variant):
            table.add_row(*row)
    return table


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
    return Group(variant_table(report.manifest), *lines, Text(report.manifest.digest))


def _variant_rows(manifest: Manifest, variant: Variant) -> Iterator[tuple[str, ...]]:
    head: tuple[str, ...] = (
        variant.name,
        variant.layout,
        variant.precision,
        variant.tokenizer,
        f"{resident_bytes(manifest, variant.name) / _MIB:.0f}",
        str(variant.max_tokens or ""),
    )
    if not variant.quality:
        yield (*head, "", "", "", "")
    for item in variant.quality:
        interval = f"{item.low:.4f} to {item.high:.4f}"
        yield (*head, item.population, f"{item.value:.4f} {item.metric}", interval, str(item.n))
        head = ("", "", "", "", "", "")


def _file_table(manifest: Manifest) -> Table:
    table = Table("file", "sha256")
    table.add_column("bytes", justify="right")
    for path, ref in sorted(manifest.files.items()):
        table.add_row(path, ref.sha256[:16], f"{ref.size:,}")
    return table


def _total(files: Iterable[FileRef]) -> int:
    return sum(ref.size for ref in files)
