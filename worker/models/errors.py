"""Errors of the model repository and its builder."""

from __future__ import annotations


class ModelError(Exception):
    """A model, package or repository is not what was asked for.

    The text always has three parts: what was expected, what came, and what to do.
    """

    def __init__(self, expected: str, got: str, remedy: str) -> None:
        super().__init__(f"expected {expected}; got {got}; {remedy}")
        self.expected = expected
        self.got = got
        self.remedy = remedy


class ManifestError(ModelError):
    """A manifest is unreadable or contradicts itself."""


class PackageError(ModelError):
    """A registry package is missing or does not hold the pinned content."""


class CheckpointError(ModelError):
    """A local checkpoint or ONNX file cannot become a repository entry."""
