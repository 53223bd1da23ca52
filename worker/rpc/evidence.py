"""A variant's measured evidence as the wire has it."""

from __future__ import annotations

from protos.orchid.v1 import common_pb2
from worker.models.calibration import Calibration, Escalation
from worker.models.manifest import QualityEvidence, Variant


def quality_to(quality: QualityEvidence) -> common_pb2.QualityEvidence:
    """A measured quality with its interval."""
    return common_pb2.QualityEvidence(
        population=quality.population,
        metric=quality.metric,
        value=quality.value,
        n=quality.n,
        low=quality.low,
        high=quality.high,
    )


def calibration_to(calibration: Calibration) -> common_pb2.Calibration:
    """What makes a variant's confidence a chance to be right."""
    return common_pb2.Calibration(
        population=calibration.population,
        temperature=calibration.temperature,
        error=calibration.error,
        fitted_on=calibration.fitted_on,
        n=calibration.n,
        beta=calibration.beta,
    )


def escalations_to(variant: Variant) -> list[common_pb2.Escalation]:
    """What escalating a variant's answers gains; refused evidence stays where it was measured."""
    return [_escalation_to(item) for item in variant.escalations if not item.refused]


def _escalation_to(escalation: Escalation) -> common_pb2.Escalation:
    return common_pb2.Escalation(
        population=escalation.population,
        to=escalation.to,
        confidences=escalation.confidences,
        gains=escalation.gains,
        counts=escalation.counts,
        shares_right=escalation.shares_right,
    )
