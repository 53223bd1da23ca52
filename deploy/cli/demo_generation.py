"""The demonstration's last part: one answer, streamed as it is made."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

PROMPT = "Write one sentence about the sea."
_MOST_TOKENS = 96
_READY_S = 120


def stream_one(console: Console, repository: Path, directory: Path, threads: int) -> None:
    """Starts a decode worker of `threads` on the repository's first language model and streams.

    Says how to build one when there is none. Raises ClusterError, AlreadyRunningError, or
    GenerationError when there is no answer.
    """
    from deploy.cli.generate import footer, say, tell
    from deploy.cluster import ClusterSpec, LocalCluster
    from deploy.generation import GenerationQuestion, Generator, Turn
    from deploy.services import served_models
    from worker.config import WorkerConfig

    names = sorted(served_models(WorkerConfig(repository=repository)).generators)
    if not names:
        console.print(
            "no language model to stream from: orchid models build --language-model builds one"
        )
        return
    spec = ClusterSpec(
        workers=0,
        directory=directory,
        listen="127.0.0.1:0",
        repository=repository,
        models=(names[0],),
        decode_threads=threads,
    )
    with LocalCluster(spec) as cluster:
        with console.status(f"starting a decode worker for {names[0]}"):
            cluster.wait_ready(timeout_s=_READY_S)
        console.print(f"\n[bold]{names[0]}[/bold], asked: {PROMPT}")
        question = GenerationQuestion(
            model=names[0], turns=(Turn("user", PROMPT),), max_tokens=_MOST_TOKENS
        )
        with Generator(cluster.address) as generator:
            answer = generator.generate(question, say)
        console.print()
        tell(footer(answer))
