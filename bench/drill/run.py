"""Plays the drill's scenes on a cluster of its own and on the virtual clock, and judges both."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench.drill import live, simulated
from bench.drill.arithmetic import FIXTURE, Fixture
from bench.drill.model import build, iteration_ms
from bench.drill.scene import MODEL, Answered, Check, Scene, classes, figures, tenants
from bench.drill.scenes import agreement, cost_of, point, scenes
from bench.report import Report, host_facts, make_report
from deploy.cluster import ClusterSpec, LocalCluster
from deploy.fleet import load_model, unload_model

_READY_S = 120.0
# A worker counts as so much of a unit: the control plane and the drill run on the same cores.
_UNITS_EACH = 0.8
# The load whose charges say how long work takes in a cluster that works.
_TRIAL_S = 2.0


@dataclass(frozen=True, slots=True)
class DrillSettings:
    """What to play: scenes of `seconds` on so many workers, requests scaled by `time`.

    `only` names the scenes, empty all. `live` False plays the simulated side alone.
    """

    workers: int
    time: float = 0.3
    seconds: float = 4.0
    deadline_ms: float = 1000.0
    only: tuple[str, ...] = ()
    live: bool = True


@dataclass(frozen=True, slots=True)
class Played:
    """A scene that was played, and what was found of it."""

    scene: Scene
    checks: tuple[Check, ...]
    live: tuple[Answered, ...]
    simulated: tuple[Answered, ...]

    @property
    def ok(self) -> bool:
        """Whether everything was as it must be."""
        return all(check.ok for check in self.checks)


def _fixture(settings: DrillSettings) -> Fixture:
    return FIXTURE.scaled(settings.workers * _UNITS_EACH, settings.time)


def chosen(settings: DrillSettings) -> list[Scene]:
    """The scenes that are asked for; ValueError names those there are."""
    fixture = _fixture(settings)
    found = scenes(fixture, settings.seconds)
    names = [scene.name for scene in found]
    unknown = [name for name in settings.only if name not in names]
    if unknown:
        raise ValueError(f"no scene {unknown[0]!r}; scenes: {', '.join(names)}")
    return [scene for scene in found if not settings.only or scene.name in settings.only]


def drill(
    settings: DrillSettings, notify: Callable[[str], None] = lambda phase: None
) -> Iterator[Played]:
    """Plays scene after scene, each as soon as it is asked for.

    Raises ClusterError when the cluster does not come up, ValueError for unknown scenes.
    """
    fixture = _fixture(settings)
    found = chosen(settings)
    if not settings.live:
        for scene in found:
            foreseen = simulated.play(scene, fixture, settings.workers, settings.deadline_ms)
            yield Played(scene, tuple(scene.judge(scene, foreseen, foreseen)), (), tuple(foreseen))
        return
    with ExitStack() as stack:
        base = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="orchid-drill-")))
        notify("measuring this machine")
        each_ms = iteration_ms(base / "probe", settings.workers)
        stage = _Stage(base, fixture, settings, each_ms)
        stack.enter_context(stage.cluster)
        notify("starting the cluster")
        stage.cluster.wait_ready(timeout_s=_READY_S)
        notify("measuring this cluster")
        stage.measure()
        for scene in found:
            notify(scene.tells)
            stage.prepare(scene)
            answers = stage.play(scene)
            foreseen = simulated.play(scene, fixture, settings.workers, settings.deadline_ms)
            checks = [*scene.judge(scene, answers, foreseen), agreement(scene, answers, foreseen)]
            yield Played(scene, tuple(checks), tuple(answers), tuple(foreseen))


class _Stage:
    """A cluster with the drill's model."""

    def __init__(
        self, base: Path, fixture: Fixture, settings: DrillSettings, each_ms: float
    ) -> None:
        self._repository = base / "models"
        self._fixture = fixture
        self._settings = settings
        self._each_ms = each_ms
        self._quality = fixture.compact_quality
        self._build(self._quality)
        named = {
            name: {"minimum_quality": each.minimum_quality}
            for name, each in classes(fixture).items()
        }
        terms = {
            name: {"cpu_ms_per_s": each.cpu_ms_per_s}
            for name, each in tenants(settings.workers).named.items()
        }
        self.cluster = LocalCluster(
            ClusterSpec(
                workers=settings.workers,
                directory=base / "state",
                listen="127.0.0.1:0",
                repository=self._repository,
                # Profiles of this run's variants are of no use to another.
                env={"XDG_CACHE_HOME": str(base / "cache")},
                controlplane={"max_batch": 1, "classes": named, "tenants": {"named": terms}},
            )
        )

    def measure(self) -> None:
        """Has the model take what it should, by what some requests were charged."""
        trial = scenes(self._fixture, _TRIAL_S)[0]
        found = figures(self.play(trial), trial.seconds)
        if found.on_time == 1.0:
            self._each_ms *= found.cpu_ms_per_s / cost_of(trial, self._fixture)
            self._replace_model()

    def prepare(self, scene: Scene) -> None:
        """The model as the scene wants it, and every worker there."""
        if scene.compact_quality != self._quality:
            self._quality = scene.compact_quality
            self._replace_model()
        self.cluster.wait_ready(timeout_s=_READY_S)

    def _replace_model(self) -> None:
        unload_model(self.cluster.address, MODEL)
        self._build(self._quality)
        load_model(self.cluster.address, MODEL)
        self.cluster.wait_ready(timeout_s=_READY_S)

    def play(self, scene: Scene) -> list[Answered]:
        """Plays a scene; whoever was lost comes back after it."""
        victim = self.cluster.worker_names()[0]
        address, deadline_ms = self.cluster.address, self._settings.deadline_ms
        answers = asyncio.run(
            live.play(scene, address, deadline_ms, lambda: self.cluster.kill_worker(victim))
        )
        if scene.loses_at_s:
            self.cluster.restart_worker(victim)
        return answers

    def _build(self, quality: float) -> None:
        build(self._repository, self._fixture, self._each_ms, quality)


def report(settings: DrillSettings, played: Sequence[Played]) -> Report:
    """The drill in the common result format."""
    points: list[dict[str, Any]] = []
    summary: dict[str, float] = {}
    for each in played:
        name = each.scene.name
        sides = {"live": each.live, "simulated": each.simulated}
        for where, answers in sides.items():
            if answers:
                found = figures(answers, each.scene.seconds)
                points.append(dict(point(name, where, found)))
                summary[f"{name}.{where}.cpu_ms_per_s"] = found.cpu_ms_per_s
                summary[f"{name}.{where}.on_time_of_admitted"] = found.on_time_of_admitted
        points.append({"scene": name, "checks": [asdict(check) for check in each.checks]})
        summary[f"{name}.ok"] = float(each.ok)
    return make_report(
        "drill", host=host_facts(), settings=asdict(settings), points=points, summary=summary
    )
