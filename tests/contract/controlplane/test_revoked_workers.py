"""A worker's membership lasts no longer than the identity by which it registered."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from tests.contract.controlplane.fake_worker import FakeWorker, Membership, serving, until
from tests.contract.controlplane.plane import running
from tests.contract.controlplane.secured import NODE, bearer, secured, sha256


async def test_a_worker_whose_identity_is_revoked_is_no_member_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("controlplane.security.identities._LOOK_NS", 0)
    config, security = secured(tmp_path)
    worker = FakeWorker()
    async with running(security) as plane, serving(worker) as address:
        membership = Membership(worker, address, plane.channel, bearer(NODE))
        assert (await membership.hello()).HasField("welcome")
        await membership.report()
        file = Path(config.identities)
        file.write_text(file.read_text().replace(sha256(NODE), sha256("another")))
        await membership.report()
        assert await membership.call.code() is grpc.StatusCode.UNAUTHENTICATED
        await until(lambda: plane.registry.session_of(worker.name) is None, "it is forgotten")
