"""Builds a model that generates text into a repository: one paged graph for each precision."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import onnx

from worker.engine import Session, runtime_info
from worker.models import (
    blocks,
    decoder,
    decoder_sources,
    gguf,
    graph,
    packing,
    paged,
)
from worker.models import weights as weight_files
from worker.models.blocks import BLOCK
from worker.models.checkpoint import SafetensorsFiles, plain_tokenizer, read_json, read_tokenizer
from worker.models.checkpoint import weight_files as safetensors_of
from worker.models.decoder import Decoder, DecoderConfig
from worker.models.decoder_sources import (
    MODEL_TYPES,
    checkpoint_config,
    gguf_config,
    read_decoder,
    read_gguf,
)
from worker.models.errors import CheckpointError, ManifestError
from worker.models.gguf import GgufFile
from worker.models.gguf_tokenizer import TextSettings, text_settings
from worker.models.graph import OPSET, write_graph
from worker.models.locking import exclusive
from worker.models.manifest import (
    GENERATION,
    LARGEST,
    SCHEMA,
    FileRef,
    Generation,
    KvGeometry,
    Manifest,
    Variant,
    describe_file,
    load_manifest,
    save_manifest,
)
from worker.models.paged import (
    DecoderPrecision,
    PagedEmitter,
    paged_inputs,
    paged_outputs,
    shared_weights,
)
from worker.models.progress import Progress
from worker.models.records import (
    SharedRecord,
    VariantRecord,
    code_digest,
    complete,
    digest,
    load_record,
    load_shared,
    save_record,
    save_shared,
)
from worker.models.repository import model_folder
from worker.models.weights import write_weights

SHARED = "words.weights"
TOKENIZER = "tokenizer"
WARM_LENGTHS = (16, 64, 256)

_SOURCES = (blocks, decoder, decoder_sources, gguf, graph, packing, paged, weight_files)


@dataclass(frozen=True, slots=True)
class DecoderSource:
    """Where a decoder comes from: ``identity`` changes with its content, ``read`` loads it all.

    ``four_bits`` tells whether its weights lie in 4-bit blocks, which q4 keeps as they are.
    """

    identity: str
    config: DecoderConfig
    text: TextSettings
    four_bits: bool
    read: Callable[[], Decoder]


@dataclass(frozen=True, slots=True)
class GeneratorReport:
    """What a build did: the model's folder and manifest, and the variants it made."""

    folder: Path
    manifest: Manifest
    made: tuple[str, ...]


def open_gguf(path: Path, stack: ExitStack) -> DecoderSource:
    """Return the source of a GGUF file, which stays open as long as ``stack``.

    Raises CheckpointError when the file is damaged or of an unsupported kind.
    """
    file = stack.enter_context(GgufFile(path))
    identity = describe_file(path.parent, path.name).sha256
    four_bits = any(tensor.kind.startswith("Q4") for tensor in file.tensors.values())
    return DecoderSource(
        identity, gguf_config(file), text_settings(file), four_bits, lambda: read_gguf(file)
    )


def open_checkpoint(folder: Path, stack: ExitStack) -> DecoderSource:
    """Return the source of a folder with safetensors, config.json and tokenizer.json.

    Raises CheckpointError when it is incomplete or of an unsupported kind.
    """
    document = read_json(folder / "config.json")
    config = checkpoint_config(document)
    paths = safetensors_of(folder)
    identity = digest(
        config=document, weights=[describe_file(folder, path.name).sha256 for path in paths]
    )
    weights = stack.enter_context(SafetensorsFiles(paths))
    text = folder_settings(folder, document)
    return DecoderSource(identity, config, text, False, lambda: read_decoder(config, weights))


def is_generator(source: Path) -> bool:
    """Tell whether a GGUF file or checkpoint folder holds a decoder, by its name or config.json.

    Raises CheckpointError when a folder has no readable config.json.
    """
    if source.is_file():
        return True
    return read_json(source / "config.json").get("model_type") in MODEL_TYPES


def build_local(
    source: Path, repository: Path, name: str, *, int8: bool, progress: Progress
) -> GeneratorReport:
    """Build an entry from a GGUF file or checkpoint folder: fp32, q4 if its weights are, int8.

    Raises CheckpointError when the source is incomplete, unsupported, or does not fit int8.
    """
    with ExitStack() as stack:
        found = (open_gguf if source.is_file() else open_checkpoint)(source, stack)
        precisions: list[DecoderPrecision] = ["fp32"]
        precisions += ["int8"] if int8 else []
        precisions += ["q4"] if found.four_bits else []
        return build_generator(repository, name, found, tuple(precisions), progress)


def build_generator(
    repository: Path,
    name: str,
    source: DecoderSource,
    precisions: tuple[DecoderPrecision, ...],
    progress: Progress,
) -> GeneratorReport:
    """Build the entry ``name``; variants that an earlier build finished are kept.

    Raises CheckpointError when the source does not fit a precision, or the engine's
    ModelLoadError when a finished graph does not load.
    """
    folder = model_folder(repository, name)
    if source.config.context > LARGEST:
        raise CheckpointError(
            f"a context of at most {LARGEST} tokens",
            str(source.config.context),
            "correct what the source says of it",
        )
    with exclusive(folder):
        return _Builder(folder, name, source, progress).build(precisions)


class _Builder:
    def __init__(self, folder: Path, name: str, source: DecoderSource, progress: Progress) -> None:
        self._folder = folder
        self._name = name
        self._source = source
        self._progress = progress
        self._code = code_digest(_SOURCES)
        self._decoder: Decoder | None = None
        self._made: list[str] = []

    def build(self, precisions: tuple[DecoderPrecision, ...]) -> GeneratorReport:
        tokenizer = self._tokenizer()
        shared = self._shared()
        records = [self._variant(precision) for precision in precisions]
        files = {ref.path: ref for ref in (tokenizer, shared)}
        for record in records:
            files |= {ref.path: ref for ref in record.files}
        config, text = self._source.config, self._source.text
        manifest = Manifest(
            schema=SCHEMA,
            name=self._name,
            version="1",
            task=GENERATION,
            labels=(),
            primary_output="logits",
            default_tokenizer=TOKENIZER,
            tokenizers={TOKENIZER: tokenizer},
            variants=self._measured_before([record.variant for record in records], files),
            files=files,
            runtime={
                "built_by": "orchid",
                "engine": runtime_info().library_version,
                "onnx": onnx.__version__,
                "opset": str(OPSET),
                "custom_ops": "orchid 1",
            },
            generation=Generation(
                chat_template=text.chat_template,
                end_tokens=text.end_tokens,
                begin_token=text.begin_token,
                vocabulary=config.vocabulary,
                context=config.context,
                kv=KvGeometry(config.layers, config.kv_heads, config.head_dim),
            ),
        )
        save_manifest(manifest, self._folder)
        return GeneratorReport(self._folder, manifest, tuple(self._made))

    def _measured_before(
        self, variants: Sequence[Variant], files: Mapping[str, FileRef]
    ) -> tuple[Variant, ...]:
        """Variants with the evidence that was measured of the same files.

        What is measured is a comparison with fp32, so one file that changed voids all of it.
        """
        try:
            before = load_manifest(self._folder)
        except ManifestError:
            return tuple(variants)
        if any(before.files.get(path) != ref for path, ref in files.items()):
            return tuple(variants)
        known = {variant.name: variant.quality for variant in before.variants}
        return tuple(replace(v, quality=known.get(v.name, ())) for v in variants)

    def _read(self) -> Decoder:
        if self._decoder is None:
            with self._progress.step("reading weights", 1, "items") as report:
                self._decoder = self._source.read()
                report(1)
        return self._decoder

    def _tokenizer(self) -> FileRef:
        document = self._source.text.tokenizer
        size = read_tokenizer(document).get_vocab_size()
        if size > self._source.config.vocabulary:
            raise CheckpointError(
                f"a tokenizer of at most {self._source.config.vocabulary} tokens",
                f"one of {size}",
                "use the tokenizer of this checkpoint",
            )
        path = f"tokenizers/{TOKENIZER}.json"
        (self._folder / "tokenizers").mkdir(exist_ok=True)
        self._replace(path, lambda partial: partial.write_bytes(document))
        return describe_file(self._folder, path)

    def _shared(self) -> FileRef:
        key = self._key("shared")
        record = load_shared(self._folder, SHARED)
        if record is not None and record.key == key and complete(self._folder, [record.file]):
            return record.file
        placed = shared_weights(self._read(), SHARED)
        self._replace(SHARED, lambda partial: write_weights(placed, partial))
        file = describe_file(self._folder, SHARED)
        save_shared(self._folder, SharedRecord(key, file))
        return file

    def _variant(self, precision: DecoderPrecision) -> VariantRecord:
        name, key = f"{self._name}-{precision}", self._key(precision)
        record = load_record(self._folder, name)
        if record is not None and record.key == key and complete(self._folder, record.files):
            return record
        _check_precision(self._source, precision)
        with self._progress.step(f"making {name}", 1, "items") as report:
            files = self._write(name, precision)
            # A graph that does not load shall fail here and not in a worker.
            Session(self._folder / f"{name}.onnx", share_weights=False)
            report(1)
        decoder = self._read()
        config = decoder.config
        variant = Variant(
            name=name,
            layout="paged",
            precision=precision,
            graph=f"{name}.onnx",
            tokenizer=TOKENIZER,
            max_tokens=config.context,
            inputs=paged_inputs(decoder),
            outputs=paged_outputs(decoder),
            warm_lengths=tuple(n for n in WARM_LENGTHS if n <= config.context),
        )
        made = VariantRecord(key, variant, files)
        save_record(self._folder, made)
        self._made.append(name)
        return made

    def _write(self, name: str, precision: DecoderPrecision) -> tuple[FileRef, ...]:
        graph_path, weights_path = f"{name}.onnx", f"{name}.weights"
        model, own = PagedEmitter(self._read(), precision).emit(weights_path, SHARED)
        self._replace(weights_path, lambda partial: write_weights(own, partial))
        self._replace(graph_path, lambda partial: write_graph(model, partial))
        return tuple(describe_file(self._folder, path) for path in (graph_path, weights_path))

    def _replace(self, path: str, write: Callable[[Path], object]) -> None:
        """Write a file so that an interruption leaves the old one or the new one."""
        partial = self._folder / f"{path}.partial"
        write(partial)
        partial.replace(self._folder / path)

    def _key(self, part: str) -> str:
        return digest(code=self._code, source=self._source.identity, part=part)


def _check_precision(source: DecoderSource, precision: DecoderPrecision) -> None:
    if precision == "fp32":
        return
    config = source.config
    inputs = {config.hidden, config.heads * config.head_dim, config.intermediate}
    if any(size % BLOCK for size in inputs):
        raise CheckpointError(
            f"matrix inputs in multiples of {BLOCK} for {precision}",
            ", ".join(map(str, sorted(inputs))),
            "build fp32 only",
        )
    if precision == "q4" and not source.four_bits:
        raise CheckpointError(
            "weights in 4-bit blocks for q4, which keeps them as they are",
            "weights of another form",
            "build int8, or start from a Q4_0 or Q4_1 GGUF file",
        )


def folder_settings(
    folder: Path, document: Mapping[str, Any], tokenizer: Path | None = None
) -> TextSettings:
    """Return the tokenizer and chat settings, from the usual files of a checkpoint.

    ``document`` is its config.json, ``tokenizer`` another tokenizer.json than the folder's.
    Raises CheckpointError when there is none or a file is damaged.
    """
    named: dict[str, Any] = {}
    for file in ("tokenizer_config.json", "generation_config.json"):
        if (folder / file).is_file():
            named |= read_json(folder / file)
    template = named.get("chat_template") or ""
    if not template and (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    end = named.get("eos_token_id", document.get("eos_token_id"))
    ends = end if isinstance(end, list) else [] if end is None else [end]
    begin = named.get("bos_token_id", document.get("bos_token_id"))
    adds = named.get("add_bos_token", False) is True
    return TextSettings(
        tokenizer=plain_tokenizer(tokenizer or folder / "tokenizer.json"),
        chat_template=str(template),
        end_tokens=tuple(sorted({_token(token, folder) for token in ends})),
        begin_token=_token(begin, folder) if adds and begin is not None else None,
    )


def _token(value: Any, folder: Path) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(
            f"ids of tokens as bos_token_id and eos_token_id in {folder}",
            repr(value)[:80],
            "correct config.json and generation_config.json",
        )
    return value
