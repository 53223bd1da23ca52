"""Options that several measuring commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

PoliciesOption = Annotated[
    str, typer.Option(help="Policies by comma. Default: all that are compared.")
]
LoadsOption = Annotated[
    str, typer.Option(help="Multiples of the most accurate variant's measured capacity.")
]
SeedsOption = Annotated[int, typer.Option(min=1, help="Runs of each point, seeds 1 to N.")]
WarmupOption = Annotated[float, typer.Option(min=0.0, help="Time sent before, not counted.")]
DeadlineFactorOption = Annotated[
    float, typer.Option(min=0.1, help="Deadline, times the accurate variant's solo p50.")
]
WorkersOption = Annotated[
    int | None, typer.Option(min=1, help="Default: the cores the CPU plan grants.")
]
ModelOption = Annotated[str, typer.Option(help="Model to play.")]
RepositoryOption = Annotated[
    Path, typer.Option(envvar="ORCHID_REPOSITORY", help="Model repository.")
]
BaselineSecondsOption = Annotated[
    float, typer.Option(min=0.3, help="Time to measure solo latency and capacity first.")
]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Measure all anew, over what the file has.")
]
FirstTokenOption = Annotated[float, typer.Option(min=1.0, help="Target of first tokens.")]
TokenOption = Annotated[float, typer.Option(min=1.0, help="Target of a token after it.")]
