"""Sizes at which tensor variants are tried."""

from hypothesis import given
from hypothesis import strategies as st

from worker.models.manifest import TensorSpec
from worker.tensor_sizes import elements, free_size, trial_sizes

PAIR = (TensorSpec("a", "float32", (-1,)), TensorSpec("b", "float32", (-1,)))
IMAGE = (TensorSpec("image", "float32", (-1, 3, 224, 224)),)
SCALAR = (TensorSpec("x", "float32", ()), TensorSpec("y", "float32", (3, 4)))

specs = st.lists(
    st.builds(
        lambda shape: TensorSpec("x", "float32", tuple(shape)),
        st.lists(st.sampled_from([-1, 1, 3, 224]), max_size=4),
    ),
    min_size=1,
    max_size=4,
)


def test_sizes_grow_to_about_a_million_elements() -> None:
    assert trial_sizes(PAIR) == (2, 8, 32, 128, 512, 2048, 8192, 32768, 131072, 524288)
    assert trial_sizes(IMAGE) == (150_528, 602_112)
    assert trial_sizes(SCALAR) == (13,)


@given(specs, st.integers(0, 1 << 21))
def test_the_free_size_is_the_largest_that_fits(inputs: list[TensorSpec], wanted: int) -> None:
    free = free_size(inputs, wanted)
    assert free >= 1
    if any(-1 in spec.shape for spec in inputs):
        assert elements(inputs, free + 1) > wanted
        assert free == 1 or elements(inputs, free) <= wanted
    else:
        assert free == 1


@given(specs)
def test_every_size_is_met_exactly(inputs: list[TensorSpec]) -> None:
    for size in trial_sizes(inputs):
        assert elements(inputs, free_size(inputs, size)) == size
