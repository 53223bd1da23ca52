"""Builds a repository entry from a checkpoint folder: BERT, DistilBERT or MPNet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx
from tokenizers import Tokenizer

from worker.engine import Session, runtime_info
from worker.models.architecture import Encoder, EncoderConfig, Head
from worker.models.checkpoint import (
    SafetensorsFiles,
    labels_of,
    plain_tokenizer,
    read_json,
    read_tokenizer,
    weight_files,
)
from worker.models.emitter import Precision
from worker.models.entry import write_shared, write_variant
from worker.models.errors import CheckpointError
from worker.models.families import (
    classifier_head,
    encoder_config,
    has_classifier,
    read_encoder,
)
from worker.models.graph import OPSET
from worker.models.locking import exclusive
from worker.models.manifest import (
    SCHEMA,
    FileRef,
    Layout,
    Manifest,
    Task,
    Variant,
    describe_file,
    save_manifest,
)
from worker.models.progress import Progress
from worker.models.quality import LabelledTexts, measure, read_labelled
from worker.models.quantize import BLOCK
from worker.models.repository import model_folder

SHARED = "shared.weights"
TOKENIZER = "tokenizer"
WARM_LENGTHS = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """How to build: ``task`` None lets the weights decide; ``labelled`` is a file of texts.

    Labels default to the checkpoint's own ``id2label``.
    """

    name: str
    version: str = "1"
    task: Task | None = None
    layout: Layout = "ragged"
    precisions: tuple[Precision, ...] = ("fp32",)
    labels: tuple[str, ...] = ()
    labelled: Path | None = None


def build_checkpoint(
    source: Path, repository: Path, options: CheckpointOptions, progress: Progress
) -> Manifest:
    """Build the entry ``options.name`` from the checkpoint in ``source``; return its manifest.

    Raises CheckpointError when the checkpoint is incomplete, of another family, or does not fit
    the options; the engine's ModelLoadError when a finished graph does not load.
    """
    document = read_json(source / "config.json")
    config = encoder_config(document)
    _check_precisions(config, options.precisions)
    tokenizer = plain_tokenizer(source / "tokenizer.json")
    _check_vocabulary(config, tokenizer)
    with (
        progress.step(f"reading {source.name}", 1, "items") as report,
        SafetensorsFiles(weight_files(source)) as weights,
    ):
        task = options.task or _task_of(config, weights)
        head = classifier_head(config.family, weights) if task != "embedding" else _pooling(source)
        encoder = read_encoder(config, weights, head)
        report(1)
    labels = _labels(encoder, document, options)
    data = None if options.labelled is None else read_labelled(options.labelled, labels)
    folder = model_folder(repository, options.name)
    with exclusive(folder):
        (folder / "tokenizers").mkdir(exist_ok=True)
        path = f"tokenizers/{TOKENIZER}.json"
        (folder / path).write_bytes(tokenizer)
        files = {path: describe_file(folder, path)}
        variants = _variants(folder, encoder, options, data, files, progress)
        manifest = Manifest(
            schema=SCHEMA,
            name=options.name,
            version=options.version,
            task=task,
            labels=labels,
            primary_output=variants[0].outputs[0].name,
            default_tokenizer=TOKENIZER,
            tokenizers={TOKENIZER: files[path]},
            variants=variants,
            files=files,
            runtime={
                "built_by": "orchid",
                "engine": runtime_info().library_version,
                "onnx": onnx.__version__,
                "opset": str(OPSET),
            },
        )
        save_manifest(manifest, folder)
    return manifest


def _variants(
    folder: Path,
    encoder: Encoder,
    options: CheckpointOptions,
    data: LabelledTexts | None,
    files: dict[str, FileRef],
    progress: Progress,
) -> tuple[Variant, ...]:
    files[SHARED] = write_shared(folder, encoder, SHARED)
    if not files[SHARED].size:
        (folder / SHARED).unlink()
        del files[SHARED]
    made = []
    for precision in options.precisions:
        name = options.name + ("" if precision == "fp32" else f"-{precision}")
        with progress.step(f"making {name}", 1, "items") as report:
            variant, own = write_variant(
                folder,
                encoder,
                name=name,
                layout=options.layout,
                precision=precision,
                shared=SHARED,
                tokenizer=TOKENIZER,
                warm_lengths=WARM_LENGTHS,
            )
            session = Session(folder / variant.graph)
            report(1)
        files |= {ref.path: ref for ref in own}
        if data is not None:
            tokenizer = Tokenizer.from_file(str(folder / "tokenizers" / f"{TOKENIZER}.json"))
            output = variant.outputs[0].name
            evidence = measure(session, variant, tokenizer, output, data, progress)
            variant = replace(variant, quality=(evidence,))
        made.append(variant)
    return tuple(made)


def _task_of(config: EncoderConfig, weights: Mapping[str, Any]) -> Task:
    return "text-classification" if has_classifier(config.family, weights) else "embedding"


def _pooling(source: Path) -> Head:
    """Return the embedder's head: the pooling a sentence-transformers folder names, else mean."""
    path = source / "1_Pooling" / "config.json"
    if not path.is_file():
        return Head("mean")
    document = read_json(path)
    modes = [key for key, on in document.items() if key.startswith("pooling_mode_") and on is True]
    if modes == ["pooling_mode_mean_tokens"]:
        return Head("mean")
    if modes == ["pooling_mode_cls_token"]:
        return Head("first")
    raise CheckpointError(
        "pooling over the mean of the tokens or the first token",
        ", ".join(modes) or "no pooling",
        "export this model to ONNX yourself and use `orchid models import`",
    )


def _labels(
    encoder: Encoder, document: Mapping[str, Any], options: CheckpointOptions
) -> tuple[str, ...]:
    if encoder.head.output is None:
        if options.labels or options.labelled:
            raise CheckpointError(
                "no labels for an embedder", "labels or labelled texts", "leave them out"
            )
        return ()
    classes = len(encoder.head.output.bias)
    named = document.get("id2label")
    if options.labels:
        labels = options.labels
    elif isinstance(named, dict) and len(named) == classes:
        labels = labels_of(named)
    else:
        labels = tuple(f"class-{index}" for index in range(classes))
    if len(labels) != classes:
        raise CheckpointError(
            f"{classes} labels, one a class", f"{len(labels)}: {', '.join(labels)}", "name them all"
        )
    return labels


def _check_vocabulary(config: EncoderConfig, document: bytes) -> None:
    size = read_tokenizer(document).get_vocab_size()
    if size > config.vocabulary:
        raise CheckpointError(
            f"a tokenizer of at most {config.vocabulary} tokens, as config.json says",
            f"one of {size}",
            "use the tokenizer of this checkpoint",
        )


def _check_precisions(config: EncoderConfig, precisions: tuple[Precision, ...]) -> None:
    if "int8" in precisions and (config.hidden % BLOCK or config.intermediate % BLOCK):
        raise CheckpointError(
            f"hidden and intermediate sizes in multiples of {BLOCK} for int8",
            f"{config.hidden} and {config.intermediate}",
            "build fp32 only",
        )
