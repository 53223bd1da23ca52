"""The default model's recipes: every adapter is there and fits the depth it is for."""

from __future__ import annotations

import pytest
from safetensors import safe_open

from worker.models.sentiment import EXPECTED_ACCURACY, RECIPES, Recipe, deviation


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda recipe: recipe.name)
def test_the_adapter_has_all_layers_and_no_more(recipe: Recipe) -> None:
    with safe_open(recipe.adapter, framework="numpy") as file:
        names = set(file.keys())
    layers = {int(name.split(".")[2]) for name in names if name.startswith("encoder.layer.")}
    assert layers == set(range(recipe.layers))
    assert {"head.weight", "head.bias"} <= names
    # Six linear maps a layer, two factors each.
    assert len(names) == 12 * recipe.layers + 2


def test_deviations_are_told_with_both_numbers() -> None:
    assert set(EXPECTED_ACCURACY) == {recipe.name for recipe in RECIPES}
    assert deviation("mini3", 0.8425) == ""
    assert "0.8300, 0.8415 was expected" in deviation("mini3", 0.83)
    assert deviation("mini3-int8", 0.5) == ""


def test_only_the_minilm_variants_are_small() -> None:
    assert [recipe.name for recipe in RECIPES if recipe.small] == ["mini6", "mini4", "mini3"]
