"""A connection to another node: requests go out as they are asked for, answers come back in order."""

import asyncio
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from kbus.config import Endpoint
from kbus.protocol.api import Entity, Schema
from kbus.protocol.errors import ErrorCode
from kbus.protocol.private import Hello, PrivateRequest, Reply, encode_request

_SIZE: Final = struct.Struct(">i")
_MAX_RESPONSE_BYTES: Final = 256 * 1024 * 1024
_LIMIT_BYTES: Final = 1 << 20


class PeerError(Exception):
    """The other node did not answer, or broke off."""


class PeerRefusedError(PeerError):
    """Nobody listens at its address: the process is gone. (A machine that is gone just does not answer.)"""


class Peer:
    """Opened with `Peer.connect`. `on_closed` runs once when the connection ends, whoever ends it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._next_correlation_id = 0
        self._waiting: deque[tuple[int, asyncio.Future[memoryview]]] = deque()
        self._receiving = asyncio.get_running_loop().create_task(self._receive())

    @classmethod
    async def connect(cls, endpoint: Endpoint, hello: Hello, *, timeout_s: float) -> "Peer":
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(
                    endpoint.host, endpoint.port, limit=_LIMIT_BYTES
                )
        except ConnectionRefusedError as error:
            raise PeerRefusedError(f"{endpoint} refuses connections") from error
        except (OSError, TimeoutError) as error:
            raise PeerError(f"{endpoint} cannot be reached: {error}") from error
        peer = cls(reader, writer)
        try:
            reply = await peer.ask(hello, timeout_s=timeout_s)
        except BaseException:
            peer.close()
            raise
        if reply.error != ErrorCode.none:
            peer.close()
            raise PeerError(f"{endpoint} refuses this node: {reply.message}")
        return peer

    async def ask(self, request: PrivateRequest, *, timeout_s: float) -> Reply:
        body = await self._roundtrip(lambda number: encode_request(number, request), timeout_s)
        return Reply.from_bytes(body[4:])

    async def call(self, schema: Schema, request: Entity, *, timeout_s: float) -> Entity:
        """One of Kafka's own APIs."""
        body = await self._roundtrip(
            lambda number: schema.write_request(number, "kbus-replica", request), timeout_s
        )
        _, response = schema.read_response(body.toreadonly())
        return response

    async def _roundtrip(self, encode: Callable[[int], bytes], timeout_s: float) -> memoryview:
        if self._receiving.done():
            raise PeerError("the connection is closed")
        number = self._next_correlation_id
        self._next_correlation_id = (number + 1) & 0x7FFFFFFF
        future: asyncio.Future[memoryview] = asyncio.get_running_loop().create_future()
        self._waiting.append((number, future))
        self._writer.write(encode(number))
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError as error:
            self.close()
            raise PeerError(f"no answer within {timeout_s} s") from error

    async def _receive(self) -> None:
        reason = "closed by the other side"
        try:
            while True:
                (size,) = _SIZE.unpack(await self._reader.readexactly(_SIZE.size))
                if not 4 <= size <= _MAX_RESPONSE_BYTES:
                    raise PeerError(f"a response of {size} bytes")
                body = memoryview(await self._reader.readexactly(size))
                number, future = self._waiting.popleft()
                if _SIZE.unpack_from(body)[0] != number:
                    raise PeerError("a response to another request")
                if not future.done():
                    future.set_result(body)
        except (OSError, EOFError, PeerError, IndexError) as error:
            reason = str(error) or reason
        finally:
            self._writer.close()
            for _, future in self._waiting:
                if not future.done():
                    future.set_exception(PeerError(reason))
            self._waiting.clear()

    async def closed(self) -> None:
        """Returns when the connection has ended."""
        await asyncio.wait([self._receiving])

    def close(self) -> None:
        self._receiving.cancel()
