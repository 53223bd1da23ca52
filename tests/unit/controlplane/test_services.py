"""What the handlers do when the transport has lost the call."""

from __future__ import annotations

import asyncio
from typing import NoReturn, cast

import grpc
import pytest

from controlplane.errors import TooLate
from controlplane.rpc.services import Context, abort
from controlplane.rpc.status import status_of


class LostCall:
    async def abort(self, *_: object) -> NoReturn:
        raise grpc.aio.InternalError("the batch of operations failed")


async def test_a_status_that_cannot_be_sent_is_no_fault() -> None:
    """A fault would be logged with its traceback, for nothing but an impatient caller."""
    with pytest.raises(asyncio.CancelledError):
        await abort(cast(Context, LostCall()), status_of(TooLate("too late")))
