"""What workers tell of their variants' answers, as evidence that a table can use."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from controlplane.config import ClassConfig
from controlplane.deployed import ModelInfo
from controlplane.deployment import effective_class, variant_table
from controlplane.evidence import evidence_faults, evidence_of
from controlplane.policy.cascade import Calibration, Escalation
from controlplane.policy.records import RequestClass
from tests.unit.controlplane.fake_fleet import House, model
from tests.unit.controlplane.virtual_loop import run

STEPS = Escalation("fast", "best", (0.0, 0.8), (0.2, 0.01), (400, 600), (0.6, 0.95))


def told(*populations: str, steps: Escalation = STEPS) -> ModelInfo:
    plain = model()
    best, fast = plain.variants
    calibrations = tuple((population, Calibration()) for population in populations)
    escalations = tuple((population, steps) for population in populations)
    fast = replace(fast, calibrations=calibrations, escalations=escalations)
    return replace(plain, variants=(replace(best, calibrations=calibrations), fast))


def test_the_population_that_was_measured_first_is_everybody_s() -> None:
    found = evidence_of(told("test", "tweets"))
    assert set(found) == {"", "test", "tweets"}
    assert found[""] is found["test"]
    assert found["tweets"].escalations == (STEPS,)
    assert set(found["test"].calibrations) == {"best", "fast"}
    assert set(evidence_of(told("tweets"))) == {"tweets"}
    assert evidence_of(model()) == {}


def test_evidence_is_in_the_table_and_makes_it_another_one() -> None:
    table = variant_table(told("test"), 0.002)
    assert table.cascades is not None
    assert table.cascades.of("", (0, 1)) is not None
    assert table != variant_table(model(), 0.002)


def test_evidence_that_cannot_be_used_is_left_out_and_told() -> None:
    broken = told("test", steps=STEPS._replace(gains=(0.1, 0.2)))
    assert evidence_of(broken) == {}
    (line,) = evidence_faults({}, [broken])
    assert "evidence of model 'm' on 'test' is not used" in line


def test_a_population_that_nobody_measured_is_told() -> None:
    classes = {"a": ClassConfig(population="tweets"), "b": ClassConfig(population="test")}
    assert evidence_faults(classes, [told("test")]) == (
        "class 'a' is of population 'tweets', on which no model has evidence for cascades; "
        "populations: test",
    )


def test_a_class_says_what_its_requests_are_like_and_whether_they_may_be_approximate() -> None:
    classes = {"c": ClassConfig(population="tweets", approximation=False), "d": ClassConfig()}
    asked = effective_class(RequestClass(name="c"), classes)
    assert (asked.population, asked.approximation) == ("tweets", False)
    exact = effective_class(RequestClass(name="d", approximation=False), classes)
    assert (exact.population, exact.approximation) == ("", False)
    assert effective_class(RequestClass(name="d"), classes).approximation


def test_a_class_that_demands_no_more_is_no_copy() -> None:
    demanded = ClassConfig(
        minimum_quality=0.8, prohibited=("a",), deferrable=True, approximation=False, population="p"
    )
    classes = {"c": demanded, "plain": ClassConfig()}
    strict = RequestClass(
        name="c",
        minimum_quality=0.9,
        prohibited=frozenset("ab"),
        deferrable=True,
        approximation=False,
        population="p",
    )
    plain = RequestClass(name="plain", tenant="t", minimum_quality=0.5, prohibited=frozenset("a"))
    for asked in (strict, plain, RequestClass()):
        assert effective_class(asked, classes) is asked


@pytest.mark.parametrize(
    ("demanded", "got"),
    [
        (ClassConfig(minimum_quality=0.7), {"minimum_quality": 0.7}),
        (ClassConfig(prohibited=("b",)), {"prohibited": frozenset("ab")}),
        (ClassConfig(deferrable=True), {"deferrable": True}),
        (ClassConfig(approximation=False), {"approximation": False}),
        (ClassConfig(population="p"), {"population": "p"}),
    ],
)
def test_each_demand_of_a_class_is_in_its_copy(demanded: ClassConfig, got: dict[str, Any]) -> None:
    asked = RequestClass(name="c", minimum_quality=0.5, prohibited=frozenset("a"))
    assert effective_class(asked, {"c": demanded}) == replace(asked, **got)


def test_disagreements_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    async def join() -> None:
        house = House(classes={"a": ClassConfig(population="tweets")})
        house.join("w1", models=(told("test"),))
        house.close()

    run(join())
    assert any("population 'tweets'" in record.message for record in caplog.records)
