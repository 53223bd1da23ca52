"""Why a port cannot be had is told with what to do."""

import errno
import socket

import pytest

from protos.listening import cannot_listen


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.EADDRINUSE, "port 8900 is taken by another process"),
        (errno.EADDRINUSE, "`ss -ltnp sport = :8900`"),
        (errno.EACCES, "port 8900 takes privileges: listen on a higher port"),
        (errno.EADDRNOTAVAIL, "this machine has no such address"),
    ],
)
def test_each_reason_has_its_remedy(number: int, words: str) -> None:
    error = cannot_listen("127.0.0.1:8900", OSError(number, "(while binding)"), "HTTP")
    assert str(error).startswith("cannot listen for HTTP on 127.0.0.1:8900: ")
    assert words in str(error)


def test_what_has_no_remedy_is_told_as_it_is() -> None:
    error = cannot_listen("nowhere:1", socket.gaierror(socket.EAI_NONAME, "Name or service"))
    assert str(error) == "cannot listen on nowhere:1: Name or service"
    assert (
        str(cannot_listen("unix:/x", OSError("it says no")))
        == "cannot listen on unix:/x: it says no"
    )
    error = cannot_listen("unix:/x", OSError("it says no"))
    assert str(error) == "cannot listen on unix:/x: it says no"
