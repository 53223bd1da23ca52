"""What is deployed: sessions, readiness merged over workers, deployments kept apart."""

from dataclasses import replace

import pytest

from controlplane.errors import NotFound
from controlplane.policy.profiles import VariantProfile
from controlplane.registry import (
    ModelInfo,
    ModelState,
    Registry,
    WorkerIdentity,
    WorkerLoad,
    WorkerSession,
    WorkerState,
)
from tests.unit.controlplane.fake_fleet import model, variant


def identity(name: str, cpu: str = "cpu") -> WorkerIdentity:
    return WorkerIdentity(name, f"{name}:1", threads=1, cpu_model=cpu, simd="avx2")


def join(registry: Registry, name: str, *models: ModelInfo, cpu: str = "cpu") -> WorkerSession:
    session = registry.join(identity(name, cpu), 0)
    registry.report_models(session, models)
    return session


def test_a_worker_is_a_member_from_joining_to_leaving() -> None:
    registry = Registry()
    session = join(registry, "w1", model())
    assert registry.session_of("w1") is session
    assert registry.workers() == (session,)
    membership = registry.membership("m")
    assert membership is not None
    assert membership.workers == {session.number: frozenset({"best", "fast"})}
    assert registry.leave(session) == {"m"}
    assert session.state is WorkerState.LOST
    assert registry.membership("m") is None
    assert registry.leave(session) == frozenset()


def test_one_worker_has_one_session_at_a_time() -> None:
    registry = Registry()
    first = join(registry, "w1")
    with pytest.raises(ValueError, match="w1"):
        registry.join(identity("w1"), 0)
    registry.leave(first)
    assert join(registry, "w1").number > first.number


def test_an_unknown_model_names_the_known_ones() -> None:
    registry = Registry()
    with pytest.raises(NotFound, match="models: none"):
        registry.model("m")
    join(registry, "w1", model("a"), model("b"))
    with pytest.raises(NotFound, match="'m' here; models: a, b"):
        registry.model("m")
    assert [info.name for info in registry.models()] == ["a", "b"]


def test_a_model_is_ready_when_one_worker_is() -> None:
    registry = Registry()
    slow = join(registry, "w1", replace(model(state=ModelState.LOADING), progress=0.5))
    assert not registry.model("m").ready
    assert registry.model("m").progress == 0.5
    ready = join(registry, "w2", model())
    assert registry.model("m").ready
    membership = registry.membership("m")
    assert membership is not None
    assert set(membership.workers) == {ready.number}
    assert registry.report_models(slow, [model()]) == {"m"}
    membership = registry.membership("m")
    assert membership is not None
    assert set(membership.workers) == {slow.number, ready.number}


def test_reports_that_change_nothing_change_no_membership() -> None:
    registry = Registry()
    session = join(registry, "w1", model())
    assert registry.report_models(session, [model()]) == frozenset()
    registry.report_load(session, WorkerLoad(queued_items=3), 77)
    assert (session.load.queued_items, session.heard_ns) == (3, 77)


def test_variants_count_only_when_ready_and_profiled() -> None:
    registry = Registry()
    half = replace(
        model(),
        variants=(variant("best", 0.9, ready=False), replace(variant("fast", 0.8), profile=None)),
    )
    session = join(registry, "w1", half)
    membership = registry.membership("m")
    assert membership is not None
    assert membership.workers == {session.number: frozenset()}


def test_the_faster_profile_speaks_for_the_pool() -> None:
    registry = Registry()
    quick, slow = variant("best", 0.9), variant("best", 0.9)
    assert quick.profile is not None
    disturbed = replace(
        quick.profile, s1_ns=quick.profile.s1_ns * 3, p50_ns=quick.profile.p50_ns * 3
    )
    join(registry, "w1", replace(model(), variants=(replace(slow, profile=disturbed),)))
    join(registry, "w2", replace(model(), variants=(quick,)))
    merged = registry.model("m").variant("best").profile
    assert isinstance(merged, VariantProfile)
    assert merged.p50_ns == quick.profile.p50_ns
    with pytest.raises(NotFound, match="it has: best"):
        registry.model("m").variant("other")


def test_another_manifest_is_kept_apart_until_the_pool_is_empty() -> None:
    registry = Registry()
    old = join(registry, "old", model(digest="sha256:1"))
    new = join(registry, "new", model(digest="sha256:2"))
    assert "sha256:2 differs from the pool's sha256:1" in new.apart["m"]
    assert registry.model("m").manifest_digest == "sha256:1"
    registry.leave(old)
    assert new.apart == {}
    assert registry.model("m").manifest_digest == "sha256:2"


def test_unlike_machines_are_kept_apart() -> None:
    registry = Registry()
    join(registry, "w1", model())
    other = join(registry, "w2", model(), cpu="another")
    assert "unlike CPUs" in other.apart["m"]
    membership = registry.membership("m")
    assert membership is not None
    assert other.number not in membership.workers


def test_the_pool_keeps_its_deployment_when_an_earlier_session_gets_another() -> None:
    registry = Registry()
    first = join(registry, "w1", model(digest="sha256:1"))
    second = join(registry, "w2", model(digest="sha256:1"))
    registry.report_models(first, [model(digest="sha256:2")])
    assert registry.model("m").manifest_digest == "sha256:1"
    assert "m" in first.apart
    assert "m" not in second.apart


def test_a_model_is_expected_while_its_worker_may_yet_come() -> None:
    registry = Registry()
    assert registry.expects("m")
    join(registry, "w1", model("other"))
    assert not registry.expects("m")
    registry.gathering = True
    assert registry.expects("m")
    registry.gathering = False
    lost = join(registry, "w2", model())
    registry.leave(lost)
    assert registry.expects("m") and not registry.expects("n")
    join(registry, "w3")
    assert registry.expects("m")


def test_tokenizers_are_missed_until_they_are_sent() -> None:
    registry = Registry()
    session = join(registry, "w1", model())
    assert registry.missing_tokenizers(session) == {"00"}
    registry.add_tokenizer("00", b"{}")
    assert registry.missing_tokenizers(session) == frozenset()
    assert registry.tokenizer("00") == b"{}"
    assert registry.tokenizer("11") is None


def test_a_worker_that_could_not_read_a_model_does_not_set_the_deployment() -> None:
    registry = Registry()
    unread = replace(
        model(), manifest_digest="", variants=(), state=ModelState.FAILED, failure="no manifest"
    )
    join(registry, "w1", unread)
    assert registry.model("m").failure == "no manifest"
    working = join(registry, "w2", model())
    membership = registry.membership("m")
    assert membership is not None and membership.model.ready
    assert list(membership.workers) == [working.number]
