"""How good a decoder's variant is known to be."""

from __future__ import annotations

from controlplane.deployed import VariantInfo

_LOWER_IS_BETTER = "perplexity"


def measured_quality(variant: VariantInfo) -> float | None:
    """Quality on the first population of the evidence, None without any.

    A perplexity, whose best value is 1, counts as its inverse, so that floors and orders
    read it like any other quality.
    """
    if not variant.quality:
        return None
    evidence = variant.quality[0]
    if _LOWER_IS_BETTER not in evidence.metric:
        return evidence.value
    return 1.0 / evidence.value if evidence.value > 0.0 else 0.0
