"""Tiny models that build in milliseconds: what tests and benches run without any download.

``tiny`` is a text classifier whose every token and every position changes the logits. Its two
variants share one lexicon of word valences; ``tiny-b`` knows it through noise and has one layer,
so it is worse and faster. The quality evidence is measured on a labelled population that this
module generates, with the numpy reference below.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from worker.models.graph import ORCHID_DOMAIN, GraphBuilder, write_graph
from worker.models.layouts import classifier_outputs, text_inputs
from worker.models.manifest import (
    SCHEMA,
    Layout,
    Manifest,
    Task,
    TensorSpec,
    Variant,
    describe_file,
    save_manifest,
)
from worker.models.statistics import accuracy_evidence
from worker.models.synthetic_graphs import busy_zero, padded_attention, padded_mean

POPULATION = "tiny-words"
LABELS = ("negative", "positive")
TOKENIZER = "words"
# A word that paced variants take longer for than others.
HEAVY_WORD = "slow"
ELEMENT_TYPES = (
    *("float16", "float32", "float64"),
    *("int8", "int16", "int32", "int64", "uint8"),
    *("bool", "string"),
)

Floats = NDArray[np.float32]

_POSITIVE = (
    "good great superb lovely brilliant moving charming clever delightful excellent fine fresh "
    "funny gentle gorgeous happy honest joyful perfect rich smart strong tender thrilling warm"
)
_NEGATIVE = (
    "bad awful boring bland broken clumsy cold crude dismal dreadful dull empty flat grim lazy "
    "mess poor sad shallow silly slow stale tedious ugly weak"
)
_NEUTRAL = (
    "a an the and or of in on with this that it is was film movie story plot actor scene music "
    "camera director script ending first second time people world watch see feel one some very"
)


@dataclass(frozen=True, slots=True)
class TinyWeights:
    """Weights of a tiny classifier; shapes in terms of vocabulary V, positions M, hidden H."""

    heads: int
    words: Floats  # [V, H]
    positions: Floats  # [M, H]
    qkv: tuple[Floats, ...]  # each [H, 3H]
    project: tuple[Floats, ...]  # each [H, H]
    head: Floats  # [H, 2]


def vocabulary() -> dict[str, int]:
    """Return every word of the tiny language with its token id."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    words += f"{_POSITIVE} {_NEGATIVE} {_NEUTRAL}".split()
    return {word: index for index, word in enumerate(words)}


def tiny_tokenizer() -> Tokenizer:
    """Return the word-level tokenizer of the tiny language: ``[CLS] words [SEP]``, lower case."""
    words = vocabulary()
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[("[CLS]", words["[CLS]"]), ("[SEP]", words["[SEP]"])],
    )
    return tokenizer


def tiny_weights(
    *, seed: int, layers: int, hidden: int = 32, max_tokens: int = 512, noise: float = 0.0
) -> TinyWeights:
    """Return the weights of a tiny classifier whose lexicon carries ``noise``."""
    words = vocabulary()
    random = np.random.default_rng(seed)

    def draw(*shape: int, scale: float) -> Floats:
        return random.normal(0.0, scale, shape).astype(np.float32)

    valence = np.zeros(len(words), np.float32)
    valence[[words[word] for word in _POSITIVE.split()]] = 1.0
    valence[[words[word] for word in _NEGATIVE.split()]] = -1.0
    embedding = draw(len(words), hidden, scale=0.3)
    embedding[:, 0] = valence + draw(len(words), scale=noise)
    head = draw(hidden, 2, scale=0.05)
    head[0] = (-4.0, 4.0)
    return TinyWeights(
        heads=4,
        words=embedding,
        positions=draw(max_tokens, hidden, scale=0.1),
        qkv=tuple(draw(hidden, 3 * hidden, scale=0.1) for _ in range(layers)),
        project=tuple(draw(hidden, hidden, scale=0.1) for _ in range(layers)),
        head=head,
    )


def reference_logits(weights: TinyWeights, sequence: Sequence[int]) -> Floats:
    """Return the logits [2] of one sequence of token ids, in numpy."""
    x = weights.words[list(sequence)] + weights.positions[: len(sequence)]
    hidden, size = x.shape[1], x.shape[1] // weights.heads
    for qkv, project in zip(weights.qkv, weights.project, strict=True):
        parts = (x @ qkv).reshape(len(x), 3, weights.heads, size).transpose(1, 2, 0, 3)
        scores = parts[0] @ parts[1].transpose(0, 2, 1) / np.sqrt(np.float32(size))
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        mixed = (scores / scores.sum(axis=-1, keepdims=True)) @ parts[2]
        x = x + mixed.transpose(1, 0, 2).reshape(-1, hidden) @ project
    result: Floats = x.mean(axis=0, dtype=np.float32) @ weights.head
    return result


def tiny_population(n: int = 400, seed: int = 20) -> list[tuple[str, int]]:
    """Return ``n`` sentences of the tiny language with labels: 1 when positive words prevail."""
    random = np.random.default_rng(seed)
    good, bad, other = _POSITIVE.split(), _NEGATIVE.split(), _NEUTRAL.split()
    found: list[tuple[str, int]] = []
    while len(found) < n:
        counts = random.integers(0, 5, size=2)
        if counts[0] == counts[1]:
            continue
        words = [*random.choice(good, counts[0]), *random.choice(bad, counts[1])]
        words += list(random.choice(other, int(random.integers(2, 24))))
        text = " ".join(str(word) for word in random.permutation(words))
        found.append((text, int(counts[0] > counts[1])))
    return found


def build_synthetic(
    repository: Path,
    name: str = "tiny",
    *,
    max_tokens: int = 512,
    busy: Mapping[str, int] | None = None,
) -> Path:
    """Build the ragged classifier with variants ``tiny-a`` (better) and ``tiny-b`` (faster).

    ``busy`` adds that many iterations of useless work (about 3 microseconds each) to every run of
    a variant, which makes its service time as long as a test needs. Returns the model's folder.
    """
    better = tiny_weights(seed=1, layers=4, max_tokens=max_tokens)
    faster = tiny_weights(seed=2, layers=1, max_tokens=max_tokens, noise=0.7)
    made = {"tiny-a": better, "tiny-b": faster}
    return _write_classifier(repository / name, name, made, "ragged", max_tokens, busy or {})


@dataclass(frozen=True, slots=True)
class Pace:
    """Useless work of a run, in iterations of about 3 microseconds.

    Each `HEAVY_WORD` in it takes `per_heavy` more, which no profile foresees.
    """

    fixed: int
    per_token: int = 0
    per_heavy: int = 0


def build_paced(
    repository: Path,
    name: str,
    paces: Mapping[str, Pace],
    qualities: Mapping[str, float],
    *,
    max_tokens: int = 512,
) -> Path:
    """Build a ragged classifier whose variants take as long as their paces say.

    ``qualities`` becomes their evidence, as if so many of 1,000 texts had been right. Building it
    again replaces it. Returns the model's folder.
    """
    folder = repository / name
    (folder / "tokenizers").mkdir(parents=True, exist_ok=True)
    tiny_tokenizer().save(str(folder / "tokenizers" / f"{TOKENIZER}.json"))
    inputs, outputs = text_inputs("ragged"), classifier_outputs(len(LABELS))
    weights = tiny_weights(seed=1, layers=1, max_tokens=max_tokens)
    variants = []
    for label, pace in paces.items():
        graph = _classifier_graph(weights, "ragged", pace)
        write_graph(graph.build(inputs, outputs), folder / f"{label}.onnx")
        variants.append(
            Variant(
                name=label,
                layout="ragged",
                precision="fp32",
                graph=f"{label}.onnx",
                tokenizer=TOKENIZER,
                max_tokens=max_tokens,
                inputs=inputs,
                outputs=outputs,
                quality=(accuracy_evidence(POPULATION, round(1000 * qualities[label]), 1000),),
                warm_lengths=(8, 32, 128),
            )
        )
    return _finish(folder, name, "text-classification", tuple(variants), "logits")


def build_padded(repository: Path, name: str = "tiny-padded", *, max_tokens: int = 512) -> Path:
    """Build the classifier of ``tiny-a`` as a stock padded graph with variant ``tiny-a``."""
    made = {"tiny-a": tiny_weights(seed=1, layers=4, max_tokens=max_tokens)}
    return _write_classifier(repository / name, name, made, "padded", max_tokens, {})


def build_tensor_model(repository: Path, name: str = "adder") -> Path:
    """Build a model without tokens: ``sum`` = ``a`` + ``b``, float32 of any length."""
    graph = GraphBuilder(name)
    graph.node("Add", ["a", "b"], output="sum")
    inputs = (TensorSpec("a", "float32", (-1,)), TensorSpec("b", "float32", (-1,)))
    outputs = (TensorSpec("sum", "float32", (-1,)),)
    return _write_tensor(repository / name, name, graph, inputs, outputs)


def build_identity(repository: Path, name: str = "identity") -> Path:
    """Build a model that returns its inputs, one of every element type the engine takes.

    Input ``in_<type>`` [N] comes back as ``out_<type>``.
    """
    graph = GraphBuilder(name)
    for label in ELEMENT_TYPES:
        graph.node("Identity", [f"in_{label}"], output=f"out_{label}")
    inputs = tuple(TensorSpec(f"in_{label}", label, (-1,)) for label in ELEMENT_TYPES)
    outputs = tuple(TensorSpec(f"out_{label}", label, (-1,)) for label in ELEMENT_TYPES)
    return _write_tensor(repository / name, name, graph, inputs, outputs)


def build_slow(repository: Path, name: str = "slow", *, ms: int = 2000) -> Path:
    """Build a tensor model that works for very roughly ``ms`` milliseconds a run.

    It is a Loop of many small nodes, so a terminate flag is noticed between any two of them.
    ``y`` equals ``x`` [N] float32.
    """
    graph = GraphBuilder(name)
    graph.node("Add", ["x", busy_zero(graph, _trips(graph, Pace(ms * 400)))], output="y")
    inputs, outputs = (TensorSpec("x", "float32", (-1,)),), (TensorSpec("y", "float32", (-1,)),)
    return _write_tensor(repository / name, name, graph, inputs, outputs)


def _trips(graph: GraphBuilder, pace: Pace) -> str:
    """How many steps a run takes, an int64 scalar."""
    trips = graph.constant("busy_trips", np.array(pace.fixed, np.int64))
    if pace.per_token:
        rows = graph.node("Squeeze", [graph.node("Shape", ["input_ids"])])
        each = graph.constant("busy_each", np.array(pace.per_token, np.int64))
        trips = graph.node("Add", [trips, graph.node("Mul", [rows, each])])
    if pace.per_heavy:
        word = graph.constant("heavy_word", np.array(vocabulary()[HEAVY_WORD], np.int64))
        hits = graph.node("Cast", [graph.node("Equal", ["input_ids", word])], to=7)
        axes = graph.constant("heavy_axes", np.array([0], np.int64))
        count = graph.node("ReduceSum", [hits, axes], keepdims=0)
        more = graph.constant("heavy_each", np.array(pace.per_heavy, np.int64))
        trips = graph.node("Add", [trips, graph.node("Mul", [count, more])])
    return trips


def _classifier_graph(weights: TinyWeights, layout: Layout, busy: Pace | None) -> GraphBuilder:
    graph = GraphBuilder("tiny")
    hidden = weights.words.shape[1]
    words = graph.node("Gather", [graph.constant("words", weights.words), "input_ids"])
    places = graph.constant("positions", weights.positions)
    if layout == "ragged":
        index = graph.node("RaggedPositions", ["input_ids", "row_offsets"], domain=ORCHID_DOMAIN)
        x = graph.node("Add", [words, graph.node("Gather", [places, index])])
    else:
        zero = graph.constant("zero", np.array([0], np.int64))
        shape = graph.node("Shape", ["input_ids"], start=1, end=2)
        x = graph.node("Add", [words, graph.node("Slice", [places, zero, shape, zero])])
    for layer, (qkv, project) in enumerate(zip(weights.qkv, weights.project, strict=True)):
        packed = graph.node("MatMul", [x, graph.constant(f"qkv_{layer}", qkv)])
        if layout == "ragged":
            mixed = graph.node(
                "RaggedAttention",
                [packed, "row_offsets"],
                domain=ORCHID_DOMAIN,
                num_heads=weights.heads,
            )
        else:
            mixed = padded_attention(graph, packed, weights.heads, hidden)
        out = graph.node("MatMul", [mixed, graph.constant(f"project_{layer}", project)])
        x = graph.node("Add", [x, out])
    if layout == "ragged":
        pooled = graph.node("RaggedMean", [x, "row_offsets"], domain=ORCHID_DOMAIN)
    else:
        pooled = padded_mean(graph, x)
    head = graph.constant("head", weights.head)
    if busy is not None:
        raw = graph.node("MatMul", [pooled, head])
        graph.node("Add", [raw, busy_zero(graph, _trips(graph, busy))], output="logits")
    else:
        graph.node("MatMul", [pooled, head], output="logits")
    return graph


def _write_classifier(
    folder: Path,
    name: str,
    made: Mapping[str, TinyWeights],
    layout: Layout,
    max_tokens: int,
    busy: Mapping[str, int],
) -> Path:
    (folder / "tokenizers").mkdir(parents=True, exist_ok=True)
    tokenizer = tiny_tokenizer()
    tokenizer.save(str(folder / "tokenizers" / f"{TOKENIZER}.json"))
    sample = [(tokenizer.encode(text).ids, label) for text, label in tiny_population()]
    variants = []
    for label, weights in made.items():
        inputs, outputs = text_inputs(layout), classifier_outputs(len(LABELS))
        pace = Pace(busy[label]) if busy.get(label) else None
        graph = _classifier_graph(weights, layout, pace)
        write_graph(graph.build(inputs, outputs), folder / f"{label}.onnx")
        right = sum(int(reference_logits(weights, ids).argmax()) == y for ids, y in sample)
        variants.append(
            Variant(
                name=label,
                layout=layout,
                precision="fp32",
                graph=f"{label}.onnx",
                tokenizer=TOKENIZER,
                max_tokens=max_tokens,
                inputs=inputs,
                outputs=outputs,
                quality=(accuracy_evidence(POPULATION, right, len(sample)),),
                warm_lengths=(8, 32, 128),
            )
        )
    return _finish(folder, name, "text-classification", tuple(variants), "logits")


def _write_tensor(
    folder: Path,
    name: str,
    graph: GraphBuilder,
    inputs: tuple[TensorSpec, ...],
    outputs: tuple[TensorSpec, ...],
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_graph(graph.build(inputs, outputs), folder / "graph.onnx")
    variant = Variant(name, "tensor", "fp32", "graph.onnx", "", 0, inputs, outputs)
    return _finish(folder, name, "tensor", (variant,), outputs[0].name)


def _finish(
    folder: Path, name: str, task: Task, variants: tuple[Variant, ...], primary: str
) -> Path:
    text = task != "tensor"
    tokens = f"tokenizers/{TOKENIZER}.json"
    paths = [variant.graph for variant in variants] + ([tokens] if text else [])
    files = {path: describe_file(folder, path) for path in paths}
    manifest = Manifest(
        schema=SCHEMA,
        name=name,
        version="1",
        task=task,
        labels=LABELS if text else (),
        primary_output=primary,
        default_tokenizer=TOKENIZER if text else "",
        tokenizers={TOKENIZER: files[tokens]} if text else {},
        variants=variants,
        files=files,
        runtime={"built_by": "synthetic"},
    )
    save_manifest(manifest, folder)
    return folder
