"""`orchid bench cascade`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.bench_options import RepositoryOption
from deploy.cli.output import JsonOption, fail, fail_for_model
from deploy.cli.results import finish, print_summary


def cascade(
    model: Annotated[str, typer.Option(help="Classifier to look at.")] = "sentiment",
    population: Annotated[
        str, typer.Option(help="Population with confidence evidence. Default: the model's first.")
    ] = "",
    first: Annotated[str, typer.Option(help="First stage. Default: the cheapest.")] = "",
    to: Annotated[str, typer.Option(help="Second stage. Default: the most accurate.")] = "",
    repository: RepositoryOption = Path("models"),
    plot: Annotated[Path | None, typer.Option(help="Draw the picture into this PNG.")] = None,
    json: JsonOption = None,
) -> None:
    """Compare cascades with the best mixes of fixed variants on recorded answers.

    Needs `orchid models evaluate` and this machine's `orchid profile`; runs no model.
    """
    from bench.cascade import run_cascade
    from bench.cascade_plot import plot_cascade
    from bench.report import host_facts
    from worker.models.errors import ModelError
    from worker.models.repository import find_model
    from worker.profile_file import ProfileFileError, own_machine, profile_path, read_profile_file

    if bool(first) != bool(to):
        fail("expected --first and --to together; got one of them", "name both or none")
    host = host_facts()
    folder = repository / model
    try:
        manifest = find_model(repository, model)
        known = [item.population for variant in manifest.variants for item in variant.calibrations]
        if not known or population not in ("", *known):
            fail(
                f"expected confidence evidence of {model} on {population or 'some population'}; "
                f"got {', '.join(dict.fromkeys(known)) or 'none'}",
                f"orchid models evaluate {model} measures it",
            )
        file = read_profile_file(profile_path(folder, own_machine(1)))
        report = run_cascade(
            folder,
            manifest,
            file,
            population or known[0],
            pair=(first, to) if first else None,
            host=host,
        )
    except ModelError as error:
        fail_for_model(error)
    except ProfileFileError as error:
        fail(str(error), f"orchid profile {model} measures one")
    except ValueError as error:
        fail(str(error))
    print_summary(report)
    if plot is not None:
        plot_cascade(report, plot)
        typer.echo(f"written: {plot}")
    finish(report, json)
