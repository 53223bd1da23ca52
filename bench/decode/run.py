"""What decoding reaches on this machine, in one process and one run, everything in turns."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from bench.decode.compare import MEASURES, Rates, agreement, compare, ratios
from bench.decode.golden import largest_difference
from bench.decode.grid import cached_token_bytes, step_grid
from bench.decode.ours import EngineSubject, VariantFiles, open_variant, variants_of
from bench.decode.peer import Peer, PeerError, started
from bench.decode.peers.protocol import Subject
from bench.decode.stock import StockSettings, against_stock
from bench.report import Report, host_facts, make_report
from worker.engine import machine_class, measure_read_rate, runtime_info
from worker.models.manifest import GENERATION, Generation, Manifest
from worker.models.smollm2 import NAME

Notify = Callable[[str], None]
# The variant whose ratios are in the summary, and what its name there begins with.
_SERVED = "q4"
_OURS = "orchid-"
_READ_SECONDS = 0.5
# Prompts whose next token is compared: random tokens, after which no model is very sure.
_PROMPTS, _PROMPT_TOKENS = 16, 32


@dataclass(frozen=True, slots=True)
class DecodeSettings:
    """`threads` for everybody; medians are over `rounds` turns of `steps` steps.

    `batches` and `lengths` (cached tokens) span the grid of our own steps; `context` bounds a
    sequence; `stock` compares with a stock graph of GPT-2's shape.
    """

    threads: int = 2
    rounds: int = 5
    steps: int = 8
    grid_steps: int = 12
    batches: tuple[int, ...] = (1, 2, 4, 8, 16)
    lengths: tuple[int, ...] = (128, 512, 900, 960)
    context: int = 1024
    stock: bool = True


@dataclass(frozen=True, slots=True)
class PeerModel:
    """A peer and the arguments its program gets beside those of every peer."""

    peer: Peer
    arguments: Mapping[str, Any]


class DecodeBenchError(Exception):
    """The bench cannot run; the text says why."""


def run_decode(
    settings: DecodeSettings,
    folder: Path,
    manifest: Manifest,
    peers: Sequence[PeerModel],
    notify: Notify,
    warn: Notify,
) -> Report:
    """Measure a language model's variants, and peers on the same weights and prompts.

    A peer that does not load is left out with a warning. Raises DecodeBenchError when the model
    is no language model.
    """
    generation = manifest.generation
    if manifest.task != GENERATION or generation is None:
        raise DecodeBenchError(f"{manifest.name} generates no text, it is of task {manifest.task}")
    variants = variants_of(folder, manifest)
    host = host_facts()
    read_rates = [_read_rate(settings, notify)]
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-decode-")))
        ours = _open_ours(settings, variants, generation, notify)
        theirs = _open_peers(settings, generation, peers, scratch, stack, notify, warn)
        subjects: dict[str, Subject] = {**ours, **theirs}
        rates = compare(
            subjects, MEASURES, rounds=settings.rounds, steps=settings.steps, notify=notify
        )
        notify("whether all run the same model")
        reference = _OURS + ("fp32" if "fp32" in variants else next(iter(variants)))
        agreed = agreement(subjects, reference, prompts=_PROMPTS, tokens=_PROMPT_TOKENS)
        versions = {name: subject.version for name, subject in subjects.items()}
    read_rates.append(_read_rate(settings, notify))
    rate = median(read_rates) * 1e9
    grid = _grid(settings, ours, variants, generation, rate, notify)
    # The sessions' memory is for what comes.
    ours.clear()
    subjects.clear()
    golden = _golden(settings, manifest, variants, generation, notify)
    stock = (
        against_stock(StockSettings(threads=settings.threads, rounds=settings.rounds), notify)
        if settings.stock
        else []
    )
    return make_report(
        "decode",
        host=host,
        settings={
            **asdict(settings),
            "model": manifest.name,
            "digest": manifest.digest,
            "machine_class": machine_class(),
            "simd": runtime_info().simd,
            "versions": versions,
        },
        points=[
            *(point for each in rates for point in each.points()),
            *agreed,
            *grid,
            *stock,
        ],
        summary=_summary(rates, grid, stock, list(theirs), median(read_rates)) | golden,
    )


def _open_ours(
    settings: DecodeSettings,
    variants: Mapping[str, VariantFiles],
    generation: Generation,
    notify: Notify,
) -> dict[str, EngineSubject]:
    found = {}
    for precision, files in variants.items():
        notify(f"loading {files.variant.name}")
        found[_OURS + precision] = open_variant(
            files,
            generation,
            threads=settings.threads,
            batch=max(*settings.batches, *(measure.batch for measure in MEASURES)),
            context=settings.context,
        )
    return found


def _open_peers(
    settings: DecodeSettings,
    generation: Generation,
    peers: Sequence[PeerModel],
    scratch: Path,
    stack: ExitStack,
    notify: Notify,
    warn: Notify,
) -> dict[str, Subject]:
    found: dict[str, Subject] = {}
    for each in peers:
        notify(f"loading {each.peer.name}")
        arguments = {
            "threads": settings.threads,
            "vocabulary": generation.vocabulary,
            "context": settings.context,
            "batch": max(measure.batch for measure in MEASURES),
            **each.arguments,
        }
        try:
            found[each.peer.name] = stack.enter_context(started(each.peer, arguments, scratch))
        except PeerError as error:
            warn(str(error))
    return found


def _grid(
    settings: DecodeSettings,
    ours: Mapping[str, EngineSubject],
    variants: Mapping[str, VariantFiles],
    generation: Generation,
    read_rate: float,
    notify: Notify,
) -> list[dict[str, Any]]:
    kv = generation.kv
    points = []
    for precision, files in variants.items():
        weights = files.weight_bytes
        token = cached_token_bytes(kv, files.variant.layout)

        def bytes_of(batch: int, cached: int, weights: int = weights, token: int = token) -> float:
            return weights + batch * cached * token

        points += step_grid(
            ours[_OURS + precision],
            _OURS + precision,
            batches=settings.batches,
            lengths=settings.lengths,
            steps=settings.grid_steps,
            bytes_of=bytes_of,
            read_rate=read_rate,
            notify=notify,
        )
    return points


def _golden(
    settings: DecodeSettings,
    manifest: Manifest,
    variants: Mapping[str, VariantFiles],
    generation: Generation,
    notify: Notify,
) -> dict[str, float]:
    """The default model's fp32 logits against those of transformers; nothing for other models."""
    if manifest.name != NAME or "fp32" not in variants:
        return {}
    notify("logits against transformers")
    difference = largest_difference(variants["fp32"].graph, generation, threads=settings.threads)
    return {"fp32_largest_difference": difference}


def _read_rate(settings: DecodeSettings, notify: Notify) -> float:
    notify("memory bandwidth")
    return measure_read_rate(settings.threads, _READ_SECONDS)


def _summary(
    rates: Sequence[Rates],
    grid: Sequence[Mapping[str, Any]],
    stock: Sequence[Mapping[str, Any]],
    peers: Sequence[str],
    read_rate: float,
) -> dict[str, float]:
    summary = {"read_gb_s": read_rate}
    subjects = list(rates[0].by_subject)
    served = _OURS + _SERVED
    served = served if served in subjects else subjects[0]
    for each in rates:
        for subject in subjects:
            summary[f"{each.measure.name}_{subject}_tok_s"] = each.typical(subject)
    summary |= ratios(rates, served, peers)
    for point in grid:
        if point["batch"] == 1 and point["cached"] == min(p["cached"] for p in grid):
            precision = point["subject"].removeprefix(_OURS)
            suffix = "" if point["subject"] == served else f"_{precision}"
            summary[f"bandwidth_fraction_b1{suffix}"] = point["bandwidth_fraction"]
    for point in grid:
        if point["moved_share"] and point["cached"] == max(p["cached"] for p in grid):
            where = f"b{point['batch']}_{point['cached']}"
            summary[f"moved_share_{point['subject']}_{where}"] = point["moved_share"]
    for point in stock:
        summary[point["summary"]] = point["ratio"]
    return summary
