"""Takes finished ONNX files into a repository."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from worker.engine import Session, runtime_info
from worker.models.checkpoint import labels_of, plain_tokenizer, read_json
from worker.models.config_fields import ConfigFields
from worker.models.decoder_import import DecoderFiles, decoder_files, try_decoder
from worker.models.errors import CheckpointError
from worker.models.locking import exclusive
from worker.models.manifest import (
    GENERATION,
    MANIFEST_NAME,
    SCHEMA,
    Layout,
    Manifest,
    Task,
    Variant,
    describe_file,
    load_manifest,
    save_manifest,
    verify,
)
from worker.models.progress import Progress
from worker.models.quality import measure, read_labelled
from worker.models.repository import model_folder
from worker.models.signature import Signature, read_signature

TOKENIZER = "tokenizer"
WARM_LENGTHS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class ImportOptions:
    """What a graph cannot tell of itself; empty and None let the files decide.

    ``task`` "tensor" serves any graph as it is; ``tokenizer`` and ``labelled`` are files;
    ``replace`` lets the import take the place of a model of that name.
    """

    name: str = ""
    version: str = "1"
    task: Task | None = None
    primary_output: str = ""
    labels: tuple[str, ...] = ()
    tokenizer: Path | None = None
    max_tokens: int = 0
    labelled: Path | None = None
    replace: bool = False


def import_model(
    source: Path, repository: Path, options: ImportOptions, progress: Progress
) -> Manifest:
    """Copy a finished model into the repository and return its manifest.

    ``source`` is an ONNX file, a folder of ONNX files (one variant each), or a folder with a
    manifest. Raises ManifestError, CheckpointError, or the engine's ModelLoadError when a graph
    does not load.
    """
    if (source / MANIFEST_NAME).is_file():
        return _import_entry(source, repository, options, progress)
    graphs = sorted(source.glob("*.onnx")) if source.is_dir() else [source]
    if not graphs or not all(graph.is_file() for graph in graphs):
        raise CheckpointError(
            f"an ONNX file or a folder with some at {source}", "none", "name another path"
        )
    name = options.name or (source.name if source.is_dir() else source.stem)
    folder = model_folder(repository, name)
    if folder.resolve() == graphs[0].parent.resolve():
        raise CheckpointError(
            "a source outside the entry to be written", str(source), "choose another --name"
        )
    _check_free(folder, options)
    with exclusive(folder):
        manifest = _import_graphs(graphs, folder, replace(options, name=name), progress)
        save_manifest(manifest, folder)
    return manifest


def _check_free(folder: Path, options: ImportOptions) -> None:
    if not options.replace and (folder / MANIFEST_NAME).is_file():
        raise CheckpointError(
            f"no model {folder.name!r} in {folder.parent} yet",
            "one",
            "--replace takes its place, --name gives another",
        )


def _import_entry(
    source: Path, repository: Path, options: ImportOptions, progress: Progress
) -> Manifest:
    manifest = load_manifest(source)
    faults = verify(source)
    if faults:
        raise CheckpointError(
            f"the files that {source / MANIFEST_NAME} lists",
            "; ".join(map(str, faults)),
            "restore the files or remove the manifest to import the graphs alone",
        )
    manifest = replace(manifest, name=options.name or manifest.name)
    folder = model_folder(repository, manifest.name)
    _check_free(folder, options)
    with exclusive(folder):
        _copy(source, folder, sorted(manifest.files), progress)
        for variant in manifest.variants:
            Session(folder / variant.graph)
        save_manifest(manifest, folder)
    return manifest


def _import_graphs(
    graphs: Sequence[Path], folder: Path, options: ImportOptions, progress: Progress
) -> Manifest:
    source = graphs[0].parent
    signatures = {graph: read_signature(graph) for graph in graphs}
    first = signatures[graphs[0]]
    layout: Layout = "tensor" if options.task == "tensor" else first.layout
    for graph, signature in signatures.items():
        if (signature.inputs, signature.outputs) != (first.inputs, first.outputs):
            raise CheckpointError(
                f"one signature in all graphs, that of {graphs[0].name}",
                f"another in {graph.name}",
                "import the graphs one by one under different names",
            )
    primary = _primary_output(first, options)
    config = read_json(source / "config.json") if (source / "config.json").is_file() else {}
    task = _task(first, primary, layout, options)
    if options.labelled is not None and task != "text-classification":
        raise CheckpointError(
            "labelled texts only for a text classifier", f"task {task}", "leave --labelled out"
        )
    paths = dict.fromkeys(path for s in signatures.values() for path in s.external)
    decoder: DecoderFiles | None = None
    if layout == "dense":
        decoder = decoder_files(
            first, source, config, tokenizer=options.tokenizer, max_tokens=options.max_tokens
        )
        limit = decoder.generation.context
    else:
        limit = 0 if layout == "tensor" else _max_tokens(config, options)
    labels = _labels(first, primary, task, config, options)
    written = [*(graph.name for graph in graphs), *paths]
    token_path = f"tokenizers/{TOKENIZER}.json"
    document = b""
    if decoder is not None:
        document = decoder.tokenizer
    elif layout != "tensor":
        document = plain_tokenizer(options.tokenizer or source / "tokenizer.json")
    _copy(source, folder, written, progress)
    if document:
        (folder / "tokenizers").mkdir(exist_ok=True)
        (folder / token_path).write_bytes(document)
        written.append(token_path)
    files = {path: describe_file(folder, path) for path in written}
    variants = []
    for graph, signature in signatures.items():
        session = Session(folder / graph.name)
        if decoder is not None:
            try_decoder(session, decoder.generation)
        variant = Variant(
            name=graph.stem if len(graphs) > 1 else options.name,
            layout=layout,
            precision=signature.precision,
            graph=graph.name,
            tokenizer="" if layout == "tensor" else TOKENIZER,
            max_tokens=limit,
            inputs=signature.inputs,
            outputs=signature.outputs,
            warm_lengths=tuple(n for n in WARM_LENGTHS if n <= limit),
        )
        if options.labelled is not None:
            data = read_labelled(options.labelled, labels)
            tokenizer = Tokenizer.from_file(str(folder / token_path))
            evidence = measure(session, variant, tokenizer, primary, data, progress)
            variant = replace(variant, quality=(evidence,))
        variants.append(variant)
    return Manifest(
        schema=SCHEMA,
        name=options.name,
        version=options.version,
        task=task,
        labels=labels,
        primary_output=primary,
        default_tokenizer="" if layout == "tensor" else TOKENIZER,
        tokenizers={} if layout == "tensor" else {TOKENIZER: files[token_path]},
        variants=tuple(variants),
        files=files,
        runtime={"built_by": "import", "engine": runtime_info().library_version},
        generation=None if decoder is None else decoder.generation,
    )


def _copy(source: Path, folder: Path, paths: Sequence[str], progress: Progress) -> None:
    total = sum((source / path).stat().st_size for path in paths)
    done = 0
    with progress.step(f"copying {folder.name}", total, "bytes") as report:
        for path in paths:
            target = folder / path
            target.parent.mkdir(parents=True, exist_ok=True)
            partial = target.with_name(f"{target.name}.partial")
            shutil.copyfile(source / path, partial)
            partial.replace(target)
            done += target.stat().st_size
            report(done)


def _primary_output(signature: Signature, options: ImportOptions) -> str:
    names = [spec.name for spec in signature.outputs]
    if options.primary_output:
        if options.primary_output not in names:
            raise CheckpointError(
                f"a primary output of {', '.join(names)}",
                repr(options.primary_output),
                "name one of these",
            )
        return options.primary_output
    return next((name for name in ("logits", "embedding") if name in names), names[0])


def _task(signature: Signature, primary: str, layout: Layout, options: ImportOptions) -> Task:
    if layout == "tensor":
        if options.task not in (None, "tensor"):
            raise CheckpointError(
                "inputs input_ids and attention_mask [batch, seq], or input_ids [tokens] and "
                f"row_offsets, for task {options.task!r}",
                ", ".join(
                    f"{spec.name} {spec.dtype}{list(spec.shape)}" for spec in signature.inputs
                ),
                "use --task tensor to serve the graph as it is",
            )
        return "tensor"
    if layout == "dense":
        if options.task is not None:
            raise CheckpointError(
                f"task {GENERATION} for a graph with keys and values of a past",
                repr(options.task),
                "leave --task out, or use --task tensor to serve the graph as it is",
            )
        return GENERATION
    shape = next(spec.shape for spec in signature.outputs if spec.name == primary)
    if len(shape) != 2:
        raise CheckpointError(
            f"one row a sequence in the output {primary!r}",
            f"shape {list(shape)}",
            "choose --primary-output, export with pooling, or use --task tensor",
        )
    if options.task is not None:
        return options.task
    named = primary == "logits" or options.labels or options.labelled is not None
    return "text-classification" if named else "embedding"


def _max_tokens(config: Mapping[str, Any], options: ImportOptions) -> int:
    if options.max_tokens:
        return options.max_tokens
    unused = 2 if config.get("model_type") in ("mpnet", "roberta", "xlm-roberta") else 0
    fields = ConfigFields(
        config, file="config.json beside the graph", remedy="correct it, or give --max-tokens"
    )
    return fields.size("max_position_embeddings", least=1 + unused) - unused


def _labels(
    signature: Signature,
    primary: str,
    task: Task,
    config: Mapping[str, Any],
    options: ImportOptions,
) -> tuple[str, ...]:
    if task != "text-classification":
        return ()
    classes = next(spec.shape[1] for spec in signature.outputs if spec.name == primary)
    named = config.get("id2label")
    labels = options.labels
    if not labels and isinstance(named, dict):
        labels = labels_of(named)
    if not labels and classes > 0:
        labels = tuple(f"class-{index}" for index in range(classes))
    if not labels or (classes > 0 and len(labels) != classes):
        raise CheckpointError(
            f"{classes if classes > 0 else 'some'} labels for {primary!r}",
            f"{len(labels)}",
            "give --label once for each class",
        )
    return labels
