"""Profiles that outlive a worker, and whose turn it is to measure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from worker.execution import Session
from worker.hosted import LoadedVariant
from worker.models.manifest import Variant
from worker.profile import VariantProfile
from worker.warm_profiles import HostProfiles, NoWarmProfiles, WarmProfiles, warm_profile
from worker.warmup import Warmup

PROFILE = VariantProfile("v", 10.0, 1.0, 0.5, 32, 100.0, 110.0, 120.0, 0.07, 40)
FRESH = replace(PROFILE, p50_us=90.0)
VARIANT = Variant("v", "ragged", "fp32", "v.onnx", "words", 64, (), ())
LOADED = LoadedVariant(VARIANT, cast(Session, None), 0, 0)


class Runs:
    """A warm-up whose runs take `ratio` of what a known profile says."""

    def __init__(self, ratio: float = 1.0) -> None:
        self.ratio = ratio
        self.measured = 0

    def compare(self, loaded: LoadedVariant, profile: VariantProfile) -> float:
        return self.ratio

    def measure(self, loaded: LoadedVariant, progress: Callable[[float], None]) -> VariantProfile:
        self.measured += 1
        return FRESH

    def profile(
        self,
        kept: WarmProfiles[VariantProfile],
        *,
        again: bool = False,
        loaded: LoadedVariant = LOADED,
    ) -> VariantProfile | None:
        return warm_profile(
            kept, cast(Warmup, self), loaded, "content", lambda part: None, again=again
        )


def profiles(
    folder: Path, kind: str = "cpu-1", waited: list[float] | None = None
) -> HostProfiles[VariantProfile]:
    seconds = [] if waited is None else waited
    return HostProfiles(folder, kind, seconds.append, VariantProfile)


def test_a_profile_is_kept_by_content_and_kind(tmp_path: Path) -> None:
    kept = profiles(tmp_path / "made")
    assert kept.get("content") is None
    kept.put("content", PROFILE)
    assert profiles(tmp_path / "made").get("content") == PROFILE
    assert kept.get("other") is None
    assert profiles(tmp_path / "made", "cpu-2").get("content") is None
    (file,) = (tmp_path / "made").glob("*.json")
    for damage in ("{", "[]", '{"variant": "v"}'):
        file.write_text(damage)
        assert kept.get("content") is None


def test_a_folder_that_cannot_be_written_costs_nothing_but_the_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    kept = profiles(tmp_path / "file" / "folder")
    assert Runs().profile(kept) == FRESH
    assert kept.get("content") is None
    assert "without turns" in caplog.text and "is not kept" in caplog.text


def test_one_measures_at_a_time_and_nobody_waits_for_ever(tmp_path: Path) -> None:
    waited: list[float] = []
    with profiles(tmp_path).turn(), profiles(tmp_path, waited=waited).turn():
        assert sum(waited) == pytest.approx(30.0, abs=0.1)
    waited.clear()
    with profiles(tmp_path, waited=waited).turn():
        assert waited == []


@pytest.mark.parametrize(
    ("ratio", "taken"), [(1.0, True), (0.95, True), (1.4, True), (0.85, False), (1.6, False)]
)
def test_a_kept_profile_holds_while_runs_agree(tmp_path: Path, ratio: float, taken: bool) -> None:
    kept = profiles(tmp_path)
    kept.put("content", PROFILE)
    runs = Runs(ratio)
    assert runs.profile(kept) == (PROFILE if taken else FRESH)
    assert runs.measured == (not taken)
    assert kept.get("content") == (PROFILE if taken else FRESH)


def test_measuring_again_is_measuring(tmp_path: Path) -> None:
    kept = profiles(tmp_path)
    kept.put("content", PROFILE)
    assert Runs().profile(kept, again=True) == FRESH
    assert Runs().profile(NoWarmProfiles()) == FRESH


def test_tensors_are_measured_by_every_worker(tmp_path: Path) -> None:
    kept = profiles(tmp_path)
    kept.put("content", PROFILE)
    tensor = replace(LOADED, variant=replace(LOADED.variant, layout="tensor"))
    assert Runs().profile(kept, loaded=tensor) == FRESH
