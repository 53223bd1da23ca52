"""Prices of cohorts of generations: whose answers become longer than everybody's pay for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from controlplane.generation.prices import GenerationPrices
from controlplane.policy.records import RequestClass
from tests.unit.controlplane.records.test_generations import ended, usage

MS = 1_000_000
SHOP, LAB = RequestClass(tenant="shop"), RequestClass(tenant="lab")


def wrote(prices: GenerationPrices, klass: RequestClass, tokens: int, now_ns: int) -> None:
    """A generation of the class ended after so many tokens of its 40."""
    made = ended(usage=usage(generated_tokens=tokens))
    assert made.plan is not None
    prices.learn(replace(made.plan, klass=klass), made.progress, now_ns)


def price(prices: GenerationPrices, klass: RequestClass, now_ns: int, tokens: int = 30) -> float:
    return prices.price("writer", klass, tokens, now_ns)


def test_a_tenant_whose_answers_become_twice_as_long_has_its_price_within_fifty() -> None:
    prices, noise = GenerationPrices(), np.random.default_rng(3)
    corrected_after = 0
    for number in range(1, 51):
        now = number * 20 * MS
        for _ in range(3):
            wrote(prices, SHOP, int(noise.integers(9, 13)), now)
        wrote(prices, LAB, int(noise.integers(19, 25)), now)
        if not corrected_after and price(prices, LAB, now) >= 1.8:
            corrected_after = number
    assert 0 < corrected_after <= 50
    assert price(prices, LAB, now) == pytest.approx(2.0, rel=0.1)
    assert price(prices, SHOP, now) == 1.0
    # Prompts of another size are another cohort.
    assert price(prices, LAB, now, tokens=200) == 1.0
    (dear,) = prices.prices("writer", now)
    assert (dear.tenant, dear.tokens, dear.runs) == ("lab", 16, 50)


def test_how_long_all_answers_become_is_nobodys_price() -> None:
    prices = GenerationPrices()
    for number in range(60):
        wrote(prices, SHOP if number % 2 else LAB, 40, number * MS)
    assert price(prices, SHOP, 60 * MS) == price(prices, LAB, 60 * MS) == 1.0
    assert prices.prices("writer", 60 * MS) == []


def test_one_that_has_no_account_of_its_worker_teaches_nothing() -> None:
    prices = GenerationPrices()
    made = ended(usage=None)
    assert made.plan is not None
    prices.learn(made.plan, made.progress, 0)
    assert prices.prices("writer", 0) == [] == prices.prices("another", 0)
    assert price(prices, SHOP, 0) == 1.0
