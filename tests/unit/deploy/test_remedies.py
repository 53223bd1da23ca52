"""Remedies name what the fault of a connection has to do with."""

from __future__ import annotations

import pytest

from deploy.channels import unreachable
from deploy.cli.generate import explained
from deploy.cli.output import connection_remedy
from deploy.generation import GenerationError

FROM_HANDSHAKES = [
    "UNAVAILABLE: failed to connect to all addresses; last error: UNKNOWN: Socket closed",
    "UNAVAILABLE: recvmsg:Connection reset by peer",
    "UNAVAILABLE: Ssl handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER",
    "UNAVAILABLE: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate",
]


@pytest.mark.parametrize("text", FROM_HANDSHAKES)
def test_a_broken_handshake_is_told_to_bring_certificates(text: str) -> None:
    assert "--tls-ca" in connection_remedy(text, "orchid up starts a cluster")
    assert "--tls-ca" in explained(GenerationError("UNAVAILABLE", text), "127.0.0.1:1")[1]


def test_other_faults_keep_their_remedy() -> None:
    refused = "failed to connect to all addresses; last error: Connection refused"
    assert connection_remedy(refused, "orchid up starts a cluster") == "orchid up starts a cluster"
    assert explained(GenerationError("UNAVAILABLE", refused), "a:1")[1] == (
        "orchid up starts a cluster"
    )
    assert explained(GenerationError("UNAVAILABLE", "no worker"), "a:1")[1] == ""


def test_where_nobody_listens_is_told_in_short() -> None:
    refused = "UNAVAILABLE: failed to connect to all addresses; last error: Connection refused"
    assert unreachable("127.0.0.1:1", refused) == "nothing serves on 127.0.0.1:1"
    assert unreachable("127.0.0.1:1", "no worker") == "127.0.0.1:1: no worker"
