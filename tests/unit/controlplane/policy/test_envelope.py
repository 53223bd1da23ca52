"""The envelope of cost and quality, and what a little more cost brings on it."""

from __future__ import annotations

import pytest

from controlplane.policy.envelope import envelope, height, price_at


def test_the_envelope_is_concave_and_above_every_point() -> None:
    points = [(1.0, 0.5), (2.0, 0.7), (3.0, 0.72), (4.0, 0.9), (4.0, 0.8), (5.0, 0.85)]
    hull = envelope(points)
    assert hull == [(1.0, 0.5), (2.0, 0.7), (4.0, 0.9)]
    assert all(height(hull, cost) >= quality - 1e-12 for cost, quality in points)
    assert height(hull, 0.5) == 0.5
    assert height(hull, 9.0) == 0.9
    assert height(hull, 3.0) == pytest.approx(0.8)


def test_the_envelope_leaves_out_what_mixes_beat() -> None:
    hull = envelope([(1.0, 0.9), (0.5, 0.7), (0.1, 0.6), (0.4, 0.85), (1.5, 0.8), (0.1, 0.5)])
    assert hull == [(0.1, 0.6), (0.4, 0.85), (1.0, 0.9)]
    assert height(hull, 0.25) == pytest.approx(0.725)


def test_the_price_is_an_edges_slope_at_its_middle_and_linear_between() -> None:
    hull = [(1.0, 0.5), (2.0, 0.7), (4.0, 0.9)]
    prices = [price_at(hull, cost) for cost in (0.5, 1.5, 2.25, 3.0, 3.5, 4.0, 9.0)]
    assert prices == pytest.approx([0.2, 0.2, 0.15, 0.1, 0.05, 0.0, 0.0])
    # A single choice is as good at any cost.
    assert price_at([(1.0, 0.5)], 0.3) == 0.0
