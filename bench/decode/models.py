"""The compared model in the forms that peers load."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.decode import genai_model
from bench.decode.genai_model import write_genai_model
from bench.decode.peer import PEERS, Peer, PeerError, install
from bench.decode.run import DecodeSettings, PeerModel
from worker.models.decoder_sources import read_gguf
from worker.models.gguf import GgufFile
from worker.models.records import code_digest

_DIGITS = 12


def peer_models(
    gguf: Path,
    cache: Path,
    settings: DecodeSettings,
    notify: Callable[[str], None],
    warn: Callable[[str], None],
    peers: Sequence[Peer] = PEERS,
) -> list[PeerModel]:
    """Install what is missing and make what peers load of the Q4_1 file `gguf`, below `cache`.

    A peer that cannot be installed is left out with a warning.
    """
    cache.mkdir(parents=True, exist_ok=True)
    found: list[PeerModel] = []
    failed: set[str] = set()
    for peer in peers:
        package = peer.runtime.package
        if package in failed:
            continue
        try:
            install(peer.runtime, notify)
        except PeerError as error:
            failed.add(package)
            warn(str(error))
            continue
        found.append(PeerModel(peer, _arguments(peer, gguf, cache, settings, notify)))
    return found


def _arguments(
    peer: Peer,
    gguf: Path,
    cache: Path,
    settings: DecodeSettings,
    notify: Callable[[str], None],
) -> dict[str, str]:
    if peer.weights == "Q4_1":
        return {"model": str(gguf)}
    if peer.weights == "Q4_0":
        # Made by llama.cpp itself when it first loads it.
        return {"model": str(cache / f"{gguf.stem}-as-Q4_0.gguf"), "quantized_from": str(gguf)}
    code = code_digest((genai_model,))[:_DIGITS]
    folder = cache / f"{gguf.stem}-int4-{settings.threads}-{settings.context}-{code}"
    if not folder.exists():
        notify(f"writing the model for {peer.name}")
        with GgufFile(gguf) as file:
            write_genai_model(
                read_gguf(file), folder, threads=settings.threads, context=settings.context
            )
    return {"model": str(folder)}
