"""The model that a simulation serves: variants with their quality and service profile."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.sim.evidence_rows import evidence_of, evidence_rows
from bench.sim.workload import Lengths
from controlplane.policy.cascade import Evidence
from controlplane.policy.profiles import Candidate, VariantProfile, VariantTable
from controlplane.policy.records import RequestClass, Shape

SCHEMA = 1
_TEXT = {"name": str, "tokenizer": str}
_NUMBER = ("quality", "s0_ns", "s1_ns", "s2_ns", "sigma", "p50_ns")
_WHOLE = ("max_tokens", "reference_tokens")


@dataclass(frozen=True, slots=True)
class SimModel:
    """A named model; `resolution` is the control plane's `quality_resolution`.

    `evidence` of cascades is by population, as `VariantTable` has it.
    """

    name: str
    candidates: tuple[Candidate, ...]
    resolution: float = 0.002
    evidence: Mapping[str, Evidence] = field(default_factory=dict)

    def table(self, only: Sequence[str] = ()) -> VariantTable:
        """The variant table, of the variants named or of all. ValueError for unknown names."""
        names = {candidate.name for candidate in self.candidates}
        unknown = sorted(set(only) - names)
        if unknown:
            raise ValueError(f"no variant {unknown[0]!r}; variants: {', '.join(sorted(names))}")
        chosen = [c for c in self.candidates if not only or c.name in only]
        return VariantTable.build(chosen, resolution=self.resolution, evidence=self.evidence)


def routable(table: VariantTable) -> tuple[Candidate, ...]:
    """The variants of the frontier for a request without wishes, most accurate first."""
    shapes = {c.tokenizer: Shape.of_lengths([1]) for c in table.candidates}
    return tuple(table.candidates[k] for k in table.eligible(RequestClass(), shapes))


def mean_service_ns(candidate: Candidate, lengths: Lengths) -> float:
    """Mean nominal service of one request of these lengths; squares by the mean length."""
    return float(candidate.profile.predict(Shape.of_lengths([max(1, round(lengths.mean()))])))


def built_in() -> SimModel:
    """The default sentiment model as profiled on one core of a server CPU without AVX-512.

    For trying things out; a measured profile is read with `read_profile`.
    """
    measured = (
        ("mpnet12", "mpnet", 0.9217, 52.0),
        ("mpnet8", "mpnet", 0.9208, 32.0),
        ("mpnet6", "mpnet", 0.9090, 25.0),
        ("mpnet4", "mpnet", 0.8903, 17.0),
        ("mini6", "minilm", 0.8669, 8.0),
        ("mini4", "minilm", 0.8575, 5.6),
        ("mini3", "minilm", 0.8415, 4.2),
    )
    return SimModel("sentiment", tuple(_candidate(*row) for row in measured))


def two_variants(
    accurate_ms: float = 12.9,
    cheap_ms: float = 5.2,
    qualities: tuple[float, float] = (0.9106, 0.9014),
    sigma: float = 0.065,
) -> SimModel:
    """Two variants of one tokenizer, for questions that need no more."""
    return SimModel(
        "two",
        (
            _candidate("accurate", "words", qualities[0], accurate_ms, sigma),
            _candidate("cheap", "words", qualities[1], cheap_ms, sigma),
        ),
    )


def _candidate(
    name: str, tokenizer: str, quality: float, service_ms: float, sigma: float = 0.08
) -> Candidate:
    """A variant that takes `service_ms` for 27 tokens, 4 % of it whatever the length."""
    service = service_ms * 1e6
    profile = VariantProfile(
        s0_ns=0.04 * service,
        s1_ns=0.96 * service / 27,
        sigma=sigma,
        reference_tokens=27,
        p50_ns=service,
    )
    return Candidate(name, tokenizer, quality, profile, max_tokens=512, batchable=True)


# --- profiles in files ---------------------------------------------------------------


def document_of(model: SimModel) -> dict[str, Any]:
    """A model's variants as JSON values; `model_of` reads them."""
    return {
        "schema": SCHEMA,
        "model": model.name,
        "quality_resolution": model.resolution,
        "variants": [_row(candidate) for candidate in model.candidates],
        **({"evidence": evidence_rows(model.evidence)} if model.evidence else {}),
    }


def model_of(document: Any, where: str) -> SimModel:
    """Read what `document_of` made; ValueError says what is wrong with which variant.

    Each variant has name, tokenizer, quality (0 to 1), max_tokens, batchable, and its
    service profile s0_ns, s1_ns, s2_ns, sigma, reference_tokens, p50_ns.
    """
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"{where}: expected a profile of schema {SCHEMA}")
    rows = document.get("variants")
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"{where}: there is no list of variants")
    return SimModel(
        name=str(document.get("model", "")),
        candidates=tuple(_read_row(where, row) for row in rows),
        resolution=float(document.get("quality_resolution", 0.002)),
        evidence=evidence_of(document.get("evidence", []), where),
    )


def write_profile(path: Path, model: SimModel) -> None:
    """Write a model's variants as JSON, as `read_profile` reads them."""
    path.write_text(json.dumps(document_of(model), indent=1) + "\n")


def read_profile(path: Path) -> SimModel:
    """Read a model's variants from a JSON file; see `model_of`."""
    return model_of(json.loads(path.read_text()), str(path))


def _row(candidate: Candidate) -> dict[str, Any]:
    profile = asdict(candidate.profile)
    fields = {key: profile[key] for key in ("s0_ns", "s1_ns", "s2_ns", "sigma", "p50_ns")}
    return {
        "name": candidate.name,
        "tokenizer": candidate.tokenizer,
        "quality": candidate.quality,
        "max_tokens": candidate.max_tokens,
        "batchable": candidate.batchable,
        "reference_tokens": candidate.profile.reference_tokens,
        **fields,
    }


def _read_row(where: str, row: Any) -> Candidate:
    where = f"{where}: variant {row.get('name', row) if isinstance(row, dict) else row!r}"
    if not isinstance(row, dict):
        raise ValueError(f"{where} is not an object")
    for key, kind in _TEXT.items():
        if not isinstance(row.get(key), kind):
            raise ValueError(f"{where}: {key} must be text")
    numbers = {}
    for key in (*_NUMBER, *_WHOLE):
        value = row.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
            raise ValueError(f"{where}: {key} must be a number of at least 0, got {value!r}")
        numbers[key] = value
    if numbers["quality"] > 1.0:
        raise ValueError(f"{where}: quality must be at most 1, got {numbers['quality']}")
    profile = VariantProfile(
        s0_ns=numbers["s0_ns"],
        s1_ns=numbers["s1_ns"],
        s2_ns=numbers["s2_ns"],
        sigma=numbers["sigma"],
        reference_tokens=int(numbers["reference_tokens"]),
        p50_ns=numbers["p50_ns"],
    )
    return Candidate(
        name=row["name"],
        tokenizer=row["tokenizer"],
        quality=float(numbers["quality"]),
        profile=profile,
        max_tokens=int(numbers["max_tokens"]),
        batchable=row.get("batchable") is True,
    )
