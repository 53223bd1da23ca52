"""The control plane's side of one worker: Describe, and one Execute stream for all its work.

A worker of this machine carries that stream on a socket of its own where it can; others, and
those that encrypt, by gRPC.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from controlplane.generation.work import GenerationOrder
from controlplane.registry import ModelInfo, WorkerLoad
from controlplane.rpc.generate_worker import WorkerGeneration, write_order
from controlplane.rpc.local_stream import LocalStream, open_local
from controlplane.rpc.services import log_fault
from controlplane.rpc.wire import (
    large_batch_parts,
    payload_bytes,
    read_done,
    read_load,
    read_models,
    write_batch,
)
from controlplane.work import BatchDone, ItemDone, ItemStatus, WorkBatch
from protos.attachment import CONTROLPLANE_KEY
from protos.codec import LARGE_BYTES, Part, encode
from protos.dialling import SERVICES_KEEPALIVE, dial
from protos.orchid.v1 import worker_pb2, worker_pb2_grpc
from protos.tls import Certificates

_SERVICE = worker_pb2.DESCRIPTOR.services_by_name["Worker"]
_DESCRIBE_TIMEOUT_S = 10.0
# Room in a message for everything that is not an item's payload.
_OVERHEAD_BYTES = 4096

Stream = grpc.aio.StreamStreamCall[Any, Any]


@dataclass(frozen=True, slots=True)
class Description:
    """A worker's models, the tokenizer documents it sent by hash, and its repository's names."""

    models: tuple[ModelInfo, ...]
    tokenizers: dict[str, bytes]
    available: tuple[str, ...]


class WorkerClient:
    """One connection to one worker; implements `work.WorkerPort` and `generation.work.DecodePort`.

    Lives on the event loop.

    Batches and cancels that are given in one turn of the loop, or while a message is on
    its way, leave together in the next message.
    """

    def __init__(
        self,
        address: str,
        *,
        controlplane_id: str,
        now_ns: Callable[[], int],
        max_message_bytes: int,
        certificates: Certificates | None = None,
    ) -> None:
        self._address = address
        self._controlplane_id = controlplane_id
        self._max_message_bytes = max_message_bytes
        self._metadata = ((CONTROLPLANE_KEY, controlplane_id),)
        self._now_ns = now_ns
        self._max_payload = max_message_bytes - _OVERHEAD_BYTES
        self._channel = dial(
            address,
            certificates,
            (
                ("grpc.max_send_message_length", max_message_bytes),
                ("grpc.max_receive_message_length", max_message_bytes),
                *SERVICES_KEEPALIVE,
                ("grpc.enable_retries", 0),
            ),
        )
        # As the stub has it, but messages may come as their bytes.
        self._execute = self._channel.stream_stream(
            f"/{_SERVICE.full_name}/Execute",
            request_serializer=encode,
            response_deserializer=worker_pb2.ExecuteResponse.FromString,
        )
        self._stub: worker_pb2_grpc.WorkerAsyncStub = worker_pb2_grpc.WorkerStub(self._channel)
        self._batches: list[WorkBatch] = []
        self._cancels: list[int] = []
        self._awake = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._heard: Callable[[WorkerLoad | None], None] | None = None
        self._completed: Callable[[BatchDone], None] | None = None
        # As the worker described itself: its id, and its socket when it has one.
        self._worker_id = ""
        self._socket = ""
        self._local: LocalStream | None = None
        self._flushing = False

    async def describe(self, *, tokenizers: bool) -> Description:
        """What the worker has. Raises grpc.aio.AioRpcError when it does not answer."""
        response = await self._stub.Describe(
            worker_pb2.DescribeRequest(include_tokenizers=tokenizers),
            timeout=_DESCRIBE_TIMEOUT_S,
            wait_for_ready=True,
        )
        self._worker_id, self._socket = response.worker_id, response.execute_socket
        documents = {
            tokenizer.sha256: tokenizer.document
            for model in response.models
            for tokenizer in model.tokenizers
            if tokenizer.document
        }
        return Description(
            read_models(response.models), documents, tuple(response.available_models)
        )

    async def execute(
        self,
        *,
        opened: Callable[[], None],
        heard: Callable[[WorkerLoad | None], None],
        completed: Callable[[BatchDone], None],
    ) -> None:
        """Run the Execute stream until it breaks.

        Calls `opened` when work may be sent, `completed` for each result in a message, then, once
        answers are on their way, `heard` for the message. Returns when the worker ends the
        stream, raises grpc.aio.AioRpcError when it breaks.
        """
        self._heard, self._completed = heard, completed
        local = await self._open_local()
        if local is not None:
            await self._run_local(local, opened)
            return
        stream: Stream = self._execute(metadata=self._metadata)
        writer = asyncio.create_task(self._write(stream))
        try:
            opened()
            while isinstance(response := await stream.read(), worker_pb2.ExecuteResponse):
                self._take(response)
        finally:
            writer.cancel()
            stream.cancel()

    def send(self, batch: WorkBatch) -> None:
        """Queue a batch for the next message."""
        self._batches.append(batch)
        if self._local is None:
            self._awake.set()
        else:
            self._flush()

    def cancel(self, item_ids: Sequence[int]) -> None:
        """Queue cancels for the next message."""
        self._cancels.extend(item_ids)
        if self._local is None:
            self._awake.set()
        elif not self._flushing:
            # Many end together; a batch that leaves first takes them along.
            self._flushing = True
            self._loop.call_soon(self._flush)

    def generate(self, order: GenerationOrder) -> WorkerGeneration:
        """Start a generation; the call ends by itself when nobody waits for it any more."""
        now = self._now_ns()
        call = self._stub.Generate(
            write_order(order, now),
            timeout=max(0.001, (order.gone_ns - now) / 1e9),
            metadata=self._metadata,
        )
        return WorkerGeneration(call, self._address)

    async def load(self, model: str) -> ModelInfo:
        """Load a model on the worker; returns it as it is at the end of loading."""
        last = None
        async for progress in self._stub.Load(worker_pb2.LoadRequest(model=model)):
            last = progress.model
        if last is None:
            raise RuntimeError("the worker ended Load without saying how it went")
        return read_models((last,))[0]

    async def unload(self, model: str) -> None:
        """Take a model off the worker."""
        await self._stub.Unload(worker_pb2.UnloadRequest(model=model))

    async def close(self, grace_s: float | None = None) -> None:
        """End the connection, at once or when its calls have ended, for which they have a grace."""
        await self._channel.close(grace_s)

    def _take(self, response: worker_pb2.ExecuteResponse) -> None:
        """One message of the worker: first what callers wait for."""
        assert self._completed is not None
        assert self._heard is not None
        for result in response.results:
            self._completed(read_done(result))
        load = read_load(response.load) if response.HasField("load") else None
        # In the turn after the one in which callers hear of their answers.
        self._loop.call_soon(self._heard, load)

    async def _open_local(self) -> LocalStream | None:
        if not self._socket:
            return None
        return await open_local(
            self._socket,
            controlplane_id=self._controlplane_id,
            worker_id=self._worker_id,
            max_message_bytes=self._max_message_bytes,
            received=self._received,
            writable=self._flush,
        )

    async def _run_local(self, local: LocalStream, opened: Callable[[], None]) -> None:
        try:
            self._local = local
            opened()
            await local.ended
        finally:
            self._local = None
            local.abort()

    def _received(self, message: bytes) -> None:
        self._take(worker_pb2.ExecuteResponse.FromString(message))

    def _flush(self) -> None:
        """Write what waits to the local stream, as far as it takes it."""
        self._flushing = False
        local = self._local
        while local is not None and not local.paused and (self._batches or self._cancels):
            try:
                message = self._message()
            except Exception as error:
                # The worker would never hear of work that it is taken to have.
                log_fault(error)
                local.abort()
                return
            local.write(message if isinstance(message, list) else (message.SerializeToString(),))

    async def _write(self, stream: Stream) -> None:
        while True:
            await self._awake.wait()
            self._awake.clear()
            while self._batches or self._cancels:
                try:
                    message = self._message()
                    if isinstance(message, list):
                        # Joining bytes this large lets the loop go on meanwhile.
                        await stream.write(await asyncio.to_thread(b"".join, message))
                    else:
                        await stream.write(message)
                except (grpc.aio.AioRpcError, asyncio.InvalidStateError):
                    # The reader learns of the same end and says why.
                    return
                except Exception as error:
                    # Without a writer the worker would hold work that it never got.
                    log_fault(error)
                    stream.cancel()
                    return

    def _message(self) -> worker_pb2.ExecuteRequest | list[Part]:
        """The next message: everything that waits, as far as the limit allows.

        A large batch goes alone, as the parts of its bytes.
        """
        request = worker_pb2.ExecuteRequest(cancel_item_ids=self._cancels)
        self._cancels = []
        now = self._now_ns()
        room = self._max_payload
        sent = 0
        for batch in self._batches:
            size = 256 * len(batch.requests)
            for each in batch.requests:
                size += payload_bytes(each, batch.tokenizer)
            if size > self._max_payload:
                self._refuse(batch, size)
            elif size >= LARGE_BYTES and not sent and not request.cancel_item_ids:
                del self._batches[0]
                return large_batch_parts(batch, now)
            elif size > room or size >= LARGE_BYTES:
                break
            else:
                room -= size
                write_batch(batch, now, request.batches.add())
            sent += 1
        del self._batches[:sent]
        return request

    def _refuse(self, batch: WorkBatch, size: int) -> None:
        """End a batch that no message can carry."""
        assert self._completed is not None
        message = f"the input takes {size} bytes; a message carries {self._max_payload}"
        items = tuple(ItemDone(i, ItemStatus.INVALID_ARGUMENT, (), message) for i in batch.item_ids)
        self._loop.call_soon(self._completed, BatchDone(batch.id, items))
