"""`orchid capacity`: what fits into a memory, worked out by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.models import RepositoryOption
from deploy.cli.output import fail, fail_for_model

if TYPE_CHECKING:
    from rich.table import Table

    from deploy.worksheet import Fit


def capacity(
    parameters: Annotated[
        float, typer.Option(min=0.0, help="Billions of parameters of a model that is thought of.")
    ] = 0.0,
    bytes_each: Annotated[float, typer.Option(min=0.1, help="Bytes of a parameter.")] = 2.0,
    kib_per_token: Annotated[
        float, typer.Option(min=0.0, help="KiB that a token keeps cached.")
    ] = 128.0,
    memory_gib: Annotated[
        float, typer.Option(min=0.0, help="GiB there are. Default: what this machine has left.")
    ] = 0.0,
    reserve_gib: Annotated[float, typer.Option(min=0.0, help="GiB that are kept free.")] = 0.0,
    mix: Annotated[
        str, typer.Option(help="Lengths that run together, as 256x7,4096: counts positions.")
    ] = "",
    repository: RepositoryOption = None,
) -> None:
    """Work out how many cached tokens fit beside weights, and how many positions a mix takes.

    Without --parameters: for every variant of the repository's models, by its files. Weights
    are mapped once for all workers of a machine.
    """
    from rich.console import Console

    from deploy.worksheet import GIB, KIB, fit, mix_of, positions
    from worker.memory import memory_room

    console = Console()
    if mix:
        try:
            counted = positions(mix_of(mix))
        except ValueError as error:
            fail(str(error), "--mix 256x7,4096 is seven of 256 tokens and one of 4096")
        console.print(
            f"useful {counted.useful:,} positions, padded {counted.padded:,} "
            f"({counted.factor:.3f} x); a ragged run computes {counted.useful:,}",
            highlight=False,
        )
        return
    room = int(memory_gib * GIB) if memory_gib else memory_room().available
    reserve = int(reserve_gib * GIB)
    if parameters:
        weights = int(parameters * 1e9 * bytes_each)
        found = [("thought of", fit(room, reserve, weights, int(kib_per_token * KIB)))]
    else:
        found = _of_repository(repository, room, reserve)
    console.print(_table(found), highlight=False)


def _of_repository(repository: RepositoryOption, room: int, reserve: int) -> list[tuple[str, Fit]]:
    import os
    from pathlib import Path

    from deploy.worksheet import fit, needs
    from worker.models.errors import ManifestError
    from worker.models.manifest import load_manifest

    target = repository or Path(os.environ.get("ORCHID_REPOSITORY", "models"))
    found = []
    for path in sorted(target.glob("*/manifest.json")):
        try:
            manifest = load_manifest(path.parent)
            found += [
                (need.variant, fit(room, reserve, need.weights, need.token_bytes))
                for need in needs(path.parent, manifest, kv_bytes=2)
            ]
        except ManifestError as error:
            fail_for_model(error)
    if not found:
        fail(f"no models in {target}", "orchid models build makes one; or give --parameters")
    return found


def _table(found: list[tuple[str, Fit]]) -> Table:
    from rich.table import Table

    from deploy.worksheet import GIB, KIB

    table = Table(box=None, pad_edge=False, header_style="bold dim")
    table.add_column("weights of")
    for heading in ("memory GiB", "reserve", "weights", "left", "KiB a token", "live tokens"):
        table.add_column(heading, justify="right")
    for name, each in found:
        sizes = (each.memory, each.reserve, each.weights, each.rest)
        table.add_row(
            name,
            *(f"{size / GIB:.2f}" for size in sizes),
            f"{each.token_bytes / KIB:.1f}" if each.token_bytes else "",
            f"{each.live_tokens:,}" if each.token_bytes else ("" if each.fits else "too large"),
        )
    return table
