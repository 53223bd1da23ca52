"""A configuration with mutual TLS whose certificate can be exchanged while a cluster runs."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bench.certificates import Authority

_STEM, _NEXT = "cluster", "next"
_SUFFIXES = ("key", "crt")
_VARIABLES = {
    "ORCHID_TLS_CA": "authority.crt",
    "ORCHID_TLS_CERT": f"{_STEM}.crt",
    "ORCHID_TLS_KEY": f"{_STEM}.key",
}


@contextmanager
def secured(folder: Path) -> Iterator[Path]:
    """Writes certificates and the configuration that uses them; yields its path.

    Until the end this process and its children reach a cluster with the same certificate.
    """
    folder.mkdir(parents=True, exist_ok=True)
    folder = folder.absolute()
    authority = Authority(folder)
    for stem in (_STEM, _NEXT):
        authority.issue(stem, "localhost", "127.0.0.1")
    tls = {
        "certificate": str(folder / f"{_STEM}.crt"),
        "key": str(folder / f"{_STEM}.key"),
        "ca": str(authority.path),
        "require_client_certificate": True,
    }
    config = folder / "secured.yaml"
    config.write_text(json.dumps({"controlplane": {"tls": tls}, "worker": {"tls": tls}}))
    before = {name: os.environ.get(name) for name in _VARIABLES}
    os.environ.update({name: str(folder / file) for name, file in _VARIABLES.items()})
    try:
        yield config
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def rotate(config: Path) -> None:
    """Puts the next certificate in the place of the one that `secured` wrote, file by file."""
    for suffix in _SUFFIXES:
        partial = config.parent / f"{_STEM}.partial"
        shutil.copy(config.parent / f"{_NEXT}.{suffix}", partial)
        partial.replace(config.parent / f"{_STEM}.{suffix}")
