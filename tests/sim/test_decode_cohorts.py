"""One tenant's answers become twice as long as foreseen: what the others lose by it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from bench.sim.decode_sweep import DecodeSweep, scale_of, settings_of
from bench.sim.decode_workload import GenerationSizes, TokenTargets, draw_load, together
from bench.sim.decode_world import DecodeWorld, Party
from worker.scheduling.policies import SLO

USUAL, LONG = GenerationSizes(), GenerationSizes(answer=(128, 384))
# Everybody asks for answers four times as long as usual ones become.
SHOP, LAB = Party("shop", 0.25), Party("lab", 0.5)
SCALE = scale_of(DecodeSweep())
TARGETS = TokenTargets(int(SCALE.first_token_ms * 1e6), int(SCALE.token_ms * 1e6))
SETTINGS = settings_of(DecodeSweep(sizes=LONG, answer_share=0.5))


class Shares(NamedTuple):
    """What was in both targets: of all that the others asked, and of the long ones."""

    others: float
    long: float


def play(
    load: float, seed: int, *, prices: bool = True, seconds: float = 120.0, accounts: bool = False
) -> tuple[DecodeWorld, NDArray[np.int64]]:
    """A third of the generations are the lab's.

    Returns what was in its targets and what was asked, a row for each of the two.
    """
    rate = load * SCALE.capacity_per_s
    generator = np.random.default_rng(seed)
    both = together(
        [
            draw_load(generator, rate * 2 / 3, seconds, USUAL),
            draw_load(generator, rate / 3, seconds, LONG),
        ]
    )
    parties = (SHOP, LAB)
    if accounts:
        parties = (SHOP._replace(account="shop", weight=2.0), LAB._replace(account="lab"))
    settings = replace(SETTINGS, parties=parties, prices=prices)
    world = DecodeWorld(both, TARGETS, SLO, settings, np.random.default_rng(seed))
    world.run()
    assert both.who is not None
    kept = np.zeros((2, 2), np.int64)
    for number, who in enumerate(both.who):
        record = world.records.get(number)
        good = record is not None and (
            record.first_token_ns <= TARGETS.first_token_ns
            and record.mean_gap_ns <= TARGETS.token_ns
        )
        kept[who] += (int(good), 1)
    return world, kept


def shares(load: float, *, prices: bool = True, accounts: bool = False) -> Shares:
    """Over five seeds: one has some hundred generations."""
    kept = np.zeros((2, 2), np.int64)
    for seed in range(1, 6):
        kept += play(load, seed, prices=prices, accounts=accounts)[1]
    others, long = kept[:, 0] / kept[:, 1]
    return Shares(float(others), float(long))


def test_the_price_is_right_within_fifty_generations() -> None:
    world, _ = play(0.7, 1, seconds=50.0)
    assert world.prices is not None
    found = {each.tokens: each for each in world.prices.prices("m", world.now_ns)}
    runs, price = max((each.runs, each.price) for each in found.values())
    assert all(each.tenant == "lab" for each in found.values())
    assert 8 <= runs <= 50
    assert price == pytest.approx(2.0, rel=0.15)


@pytest.mark.parametrize(("load", "accounts"), [(0.8, False), (0.6, True)])
def test_the_others_are_in_their_targets_all_the_same(load: float, accounts: bool) -> None:
    found = shares(load, accounts=accounts)
    assert found.others >= 0.97
    assert found.long >= 0.9


def test_where_all_cannot_be_answered_the_long_ones_give_way() -> None:
    priced, plain = shares(0.9), shares(0.9, prices=False)
    assert priced.others > plain.others + 0.01
    # They are not kept out for good.
    assert priced.long > 0.8
