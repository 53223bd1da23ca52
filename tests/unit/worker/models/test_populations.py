"""Rated sets as populations."""

from __future__ import annotations

from pathlib import Path

import pytest

from worker.models.dataset import POPULATION, split_of
from worker.models.packages import Pin
from worker.models.populations import RATED_SETS, Population, rated_population


class OneFile:
    """Every rated set has the same sentences."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.asked: list[str] = []

    def rated(self, member: str, pin: Pin) -> Path:
        self.asked.append(member)
        return self.path


@pytest.fixture
def files(tmp_path: Path) -> OneFile:
    path = tmp_path / "rated.txt"
    path.write_text(
        "".join(f"{i}\t{(-1) ** i * (i + 1) / 10}\ttext {i}\n" for i in range(40)) + "40\t0\tflat\n"
    )
    return OneFile(path)


def test_all_of_an_unseen_set_counts_and_only_the_test_split_of_the_trained_one(
    files: OneFile,
) -> None:
    by_name = {rated.population: rated_population(rated.population, files) for rated in RATED_SETS}
    assert len(by_name["tweets"].texts) == 40
    assert 0 < len(by_name[POPULATION].texts) < 40
    assert all(split_of(text) == "test" for text in by_name[POPULATION].texts)
    fitting = by_name[POPULATION].fitting
    assert fitting is not None
    assert fitting.name == f"{POPULATION}-validation"
    assert all(split_of(text) == "validation" for text in fitting.texts)
    assert by_name["tweets"].fitting is None
    assert all(member.startswith("hutto_ICWSM_2014/") for member in files.asked)


def test_labels_and_clearness_follow_the_mean_rating(files: OneFile) -> None:
    tweets = rated_population("tweets", files)
    for text, label, clear in zip(tweets.texts, tweets.labels, tweets.clear, strict=True):
        number = int(text.split()[1])
        assert label == (number % 2 == 0)
        assert clear == (number + 1 >= 10)


def test_the_first_items_are_a_sample(files: OneFile) -> None:
    tweets = rated_population("tweets", files)
    few = tweets.first(10)
    assert few.texts == tweets.texts[:10]
    assert {int(text.split()[1]) for text in few.texts} != set(range(10))
    assert tweets.first(0) == tweets.first(400) == tweets


def test_half_of_the_items_is_to_fit_on_whatever_their_number_and_order(files: OneFile) -> None:
    tweets = rated_population("tweets", files)
    half = tweets.fitted_half()
    assert 10 <= half.sum() <= 30
    assert tweets.first(25).fitted_half().tolist() == half[:25].tolist()
    twice = Population("p", ("a", "b", "a"), (0, 1, 0), "p").fitted_half()
    assert twice[0] == twice[2]
    ids = Population("p", (), (0, 1), "p", token_ids=((1, 2), (1, 2)))
    assert ids.fitted_half()[0] == ids.fitted_half()[1]


def test_a_sample_has_a_sample_to_fit_on(files: OneFile) -> None:
    reviews = rated_population(POPULATION, files).first(2)
    assert reviews.fitting is not None
    assert (len(reviews.texts), len(reviews.fitting.texts)) == (2, 2)
