"""What the whole path answers is what the manifest's evaluation says of the variant."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import StartCluster
from tests.integration.support import connected
from worker.models.manifest import load_manifest
from worker.models.synthetic import tiny_population


async def test_accuracy_through_the_path_equals_the_evidence(
    start_cluster: StartCluster, repository: Path
) -> None:
    manifest = load_manifest(repository / "tiny")
    population = tiny_population()
    texts = [text for text, _ in population]
    cluster = start_cluster(2, models=("tiny",))
    async with connected(cluster.address) as client:
        for variant in manifest.variants:
            answers = await client.many("tiny", texts, variant=variant.name)
            right = sum(
                answer.classifications[0].index == label
                for answer, (_, label) in zip(answers, population, strict=True)
            )
            evidence = variant.quality[0]
            assert evidence.n == len(population)
            assert right / len(population) == pytest.approx(evidence.value, abs=1e-12)
            assert {a.provenance.variant for a in answers} == {variant.name}
            assert {a.provenance.manifest_digest for a in answers} == {manifest.digest}
            labels = {manifest.labels[a.classifications[0].index] for a in answers}
            assert {a.classifications[0].label for a in answers} == labels
