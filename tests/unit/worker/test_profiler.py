"""Profiling tiny models: through the serving call, checked elsewhere, resumable, refused."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from worker.engine import RunToken, Session
from worker.errors import EngineFault
from worker.independent import Independent, Recorder
from worker.meter import host_times
from worker.models.evaluate import ragged_feeds
from worker.models.manifest import Manifest, load_manifest
from worker.models.progress import Silent
from worker.models.synthetic import build_padded, build_synthetic, build_tensor_model
from worker.profile_file import MeasuredVariant, own_machine, profile_path
from worker.profile_runs import objections
from worker.profiler import (
    CrossCheckError,
    ProfileMeans,
    Profiler,
    ProfileSettings,
    profile_shapes,
)

FEW = ProfileSettings(
    passes=3,
    reference_runs=3,
    short_runs=1,
    check_runs=2,
    longest=64,
    batches=(3,),
    # The machine of a test may be busy.
    call_slack_us=1e9,
)
MACHINE = own_machine(1)


class Slow:
    """A session that takes some milliseconds of CPU time more than the graph."""

    def __init__(self, graph: Path) -> None:
        self._session = Session(graph)

    def run(self, *arguments: Any, **named: Any) -> Mapping[str, Any]:
        until = time.thread_time_ns() + 5_000_000
        while time.thread_time_ns() < until:
            pass
        return self._session.run(*arguments, **named)


class Wrong(Slow):
    """A session whose answers are a little off."""

    def run(self, *arguments: Any, **named: Any) -> Mapping[str, Any]:
        return {
            name: array + 0.01 for name, array in self._session.run(*arguments, **named).items()
        }


class Counting:
    """Opens sessions and counts their runs; ends with KeyboardInterrupt at the run `stop`."""

    def __init__(self, stop: int = -1) -> None:
        self.runs = 0
        self._stop = stop

    def __call__(self, graph: Path) -> Counted:
        return Counted(self, Session(graph))

    def count(self) -> None:
        self.runs += 1
        if self.runs == self._stop:
            raise KeyboardInterrupt


class Counted:
    """One session whose runs are counted."""

    def __init__(self, counting: Counting, session: Session) -> None:
        self._counting = counting
        self._session = session

    def run(self, *arguments: Any, **named: Any) -> Mapping[str, Any]:
        self._counting.count()
        return self._session.run(*arguments, **named)


def profiler(
    folder: Path, open_session: Any = Session, settings: ProfileSettings = FEW
) -> tuple[Profiler, Manifest]:
    manifest = load_manifest(folder)
    means = ProfileMeans(
        open_session,
        RunToken,
        time.monotonic_ns,
        time.thread_time_ns,
        time.process_time_ns,
        host_times,
    )
    return Profiler(folder, manifest, MACHINE, settings, means, Silent()), manifest


def measure(folder: Path, open_session: Any = Session) -> Mapping[str, MeasuredVariant]:
    made, manifest = profiler(folder, open_session)
    return made.run(manifest.variants)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return build_synthetic(tmp_path)


def test_every_shape_of_every_variant_is_measured_and_checked(folder: Path) -> None:
    measured = measure(folder)
    manifest = load_manifest(folder)
    assert list(measured) == [variant.name for variant in manifest.variants]
    for variant in manifest.variants:
        one = measured[variant.name]
        assert {shape.lengths for shape in one.shapes} == set(profile_shapes(variant, FEW))
        assert (32, 32, 32) in {shape.lengths for shape in one.shapes}
        assert len(one.passes) == 3
        assert one.spread >= 0.0 and one.fit_error >= 0.0 and one.neighbours >= 0.0
        assert one.check.runs == 6
        assert one.check.answers_differ < 1e-4
        assert one.profile.reference_tokens == 32
        reference = next(s for s in one.shapes if s.lengths == (32,))
        assert reference.runs == 9
        assert 0 < reference.p50_us <= reference.p95_us <= reference.p99_us
        assert min(one.profile.s0_us, one.profile.s1_us_per_token) >= 0
    assert not list((folder / "profiles").glob("*")), "what is finished leaves nothing behind"


def test_padded_and_tensor_variants_have_profiles_too(tmp_path: Path) -> None:
    padded = measure(build_padded(tmp_path))
    assert all(one.check.answers_differ < 1e-4 for one in padded.values())
    tensors = measure(build_tensor_model(tmp_path))
    (one,) = tensors.values()
    assert one.check.answers_differ == 0.0
    assert one.profile.s2_us_per_token2 == 0.0


def test_an_interrupted_profiling_goes_on(folder: Path) -> None:
    whole = Counting()
    measure(folder, whole)
    broken = Counting(stop=whole.runs * 2 // 3)
    with pytest.raises(KeyboardInterrupt):
        measure(folder, broken)
    rest = Counting()
    measured = measure(folder, rest)
    assert rest.runs < whole.runs
    assert all(len(one.passes) == 3 for one in measured.values())


def test_what_was_kept_is_forgotten_on_demand_and_with_other_settings(folder: Path) -> None:
    whole = Counting()
    measure(folder, whole)

    def interrupted() -> None:
        with pytest.raises(KeyboardInterrupt):
            measure(folder, Counting(stop=whole.runs * 2 // 3))

    interrupted()
    again = Counting()
    made, manifest = profiler(folder, again)
    made.forget()
    made.run(manifest.variants)
    assert again.runs == whole.runs
    interrupted()
    other = Counting()
    made, manifest = profiler(folder, other, replace(FEW, reference_runs=2))
    made.run(manifest.variants)
    assert other.runs > whole.runs // 2


def test_times_that_an_independent_session_does_not_take_are_refused(folder: Path) -> None:
    made, manifest = profiler(folder, Slow, replace(FEW, call_slack_us=100.0))
    with pytest.raises(CrossCheckError, match=r"tiny-a: .* ms here, .* in an independent session"):
        made.run(manifest.variants)
    assert not profile_path(folder, MACHINE).exists()
    assert not list((folder / "profiles").glob("*")), "refused runs are not gone on from"


def test_answers_that_an_independent_session_does_not_give_are_refused(folder: Path) -> None:
    with pytest.raises(CrossCheckError, match="tiny-b: answers differ"):
        measure(folder, Wrong)


def test_ten_percent_and_the_price_of_a_call_are_accepted(folder: Path) -> None:
    check = measure(folder)["tiny-a"].check
    slow = replace(check, ours_us=10_900.0, theirs_us=10_000.0, ratio=1.09)
    assert objections("v", slow, 100.0) == []
    (text,) = objections("v", replace(slow, ours_us=11_100.0, ratio=1.11), 100.0)
    assert "+11.0%" in text and "11.100 ms" in text and "10.000 ms" in text
    assert objections("v", replace(slow, ours_us=8_000.0, ratio=0.8), 100.0) != []
    fast = replace(slow, ours_us=140.0, theirs_us=50.0, ratio=2.8)
    assert objections("v", fast, 100.0) == []
    assert objections("v", replace(slow, answers_differ=float("nan")), 100.0) != []


@pytest.fixture
def independent() -> Iterator[Independent]:
    with Independent(1) as made:
        yield made


def test_the_other_side_says_what_it_cannot_run_and_goes_on(
    independent: Independent, folder: Path, tmp_path: Path
) -> None:
    graph = folder / load_manifest(folder).variants[0].graph
    recorder = Recorder(Session(graph))
    recorder.run(ragged_feeds([[1, 2, 3]]))
    with pytest.raises(EngineFault, match=r"cannot run nothing\.onnx"):
        independent.run(tmp_path / "nothing.onnx", recorder)
    elapsed_us, differ = independent.run(graph, recorder)
    assert elapsed_us > 0 and differ < 1e-5
    recorder.outputs = {name: np.zeros((9, 9)) for name in recorder.outputs}
    assert independent.run(graph, recorder)[1] == float("inf")
