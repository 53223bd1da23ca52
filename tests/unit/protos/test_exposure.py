"""Which addresses others can reach."""

import pytest

from protos.exposure import check_listener, check_peer, is_local


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1:8900", True),
        ("127.9.9.9:0", True),
        ("[::1]:80", True),
        ("localhost:80", True),
        ("LOCALHOST:80", True),
        ("unix:/run/orchid.sock", True),
        ("0.0.0.0:80", False),
        ("[::]:80", False),
        ("10.0.0.7:80", False),
        ("[fe80::1%eth0]:80", False),
        ("localhost.example:80", False),
        ("127.0.0.1.example:80", False),
        (":80", False),
    ],
)
def test_only_loopback_by_its_spelling_is_local(address: str, local: bool) -> None:
    assert is_local(address) is local


@pytest.mark.parametrize("check", [check_listener, check_peer])
def test_plain_text_elsewhere_must_be_wanted(check: object) -> None:
    assert callable(check)
    check("listen", "", encrypted=False, insecure=False)
    check("listen", "127.0.0.1:1", encrypted=False, insecure=False)
    check("listen", "10.0.0.7:1", encrypted=True, insecure=False)
    check("listen", "10.0.0.7:1", encrypted=False, insecure=True)
    with pytest.raises(ValueError, match=r"listen: .*10\.0\.0\.7:1.*docs/security\.md.*--insecure"):
        check("listen", "10.0.0.7:1", encrypted=False, insecure=False)
