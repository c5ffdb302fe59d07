"""One client connection: frame → limit → decode → dispatch → responses in request order.

The connection owns its non-blocking socket and watches it with the loop's `add_reader`/`add_writer`.
An asyncio transport in between would keep the socket for itself, and with it the two calls that
everything here is built around: `recv_into` a buffer that is used again, and `sendfile`.

Order. Requests are dispatched in the order they arrive. A handler appends, if it appends at all, before
it returns; what it returns is a response, or a future of one, and each waits in a FIFO for those before
it. So pipelined produce requests are appended and answered in order, though none waits for another's
acknowledgement. A handler that returns a task (administration) holds up the requests behind it.
"""

import asyncio
import logging
import os
import select
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

from kbus.protocol.api import (
    ApiKey,
    Entity,
    MalformedRequestError,
    RequestPeek,
    Schema,
    UnsupportedVersionError,
    peek_request,
    schema_for,
    supported_schema,
)
from kbus.protocol.outline import Lifted
from kbus.protocol.private import (
    FIRST_PRIVATE_KEY,
    MalformedPrivateMessage,
    PrivateRequest,
    decode_request,
)
from kbus.protocol.scatter import FilePart, Part
from kbus.types import BrokerId

log = logging.getLogger(__name__)

_SIZE = struct.Struct(">i")
_INITIAL_BUFFER_BYTES: Final = 16 * 1024
_KEPT_BUFFER_BYTES: Final = 4 * 1024 * 1024
"""A larger receive buffer is given back as soon as the frame that needed it is done."""
_FRAMES_PER_TURN: Final = 32
_SEND_BYTES_PER_TURN: Final = 4 * 1024 * 1024
"""Bounds on what one connection may do before the loop looks after the others."""
_BUFFERS_PER_SEND: Final = 64


class NoResponse:
    """What a produce request with acks=0 is answered with."""


NO_RESPONSE: Final = NoResponse()

Response = Entity
Outcome = Response | NoResponse | asyncio.Future[Response]
"""A plain future lets the requests behind it proceed; an `asyncio.Task` does not. Whoever makes the task
keeps it: it ends what it began, also if the client does not wait. A plain future is cancelled then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    max_request_bytes: int
    """`socket.request.max.bytes`, for requests that carry records."""
    max_control_request_bytes: int
    """For all others. Decoded, small fields take many times their wire size."""
    max_pipelined_requests: int
    frame_timeout_s: float
    """A frame, or a response, that makes no progress to its end for this long costs the connection."""
    idle_timeout_s: float


class PeerIdentity(NamedTuple):
    """Which broker is at the other end, in which registration. It has shown that it knows the secret."""

    broker_id: BrokerId
    broker_epoch: int


@dataclass(frozen=True, slots=True)
class RequestContext:
    """What a handler knows of a request beside its body."""

    schema: Schema
    client_id: str | None
    peer_host: str
    listener: str
    records: Lifted | None = None
    """See `DecodedRequest.records`."""
    peer: PeerIdentity | None = None
    """Set on connections of other nodes."""
    forwarded: bool = False
    """Another broker passed it on: it is served here or not at all."""

    @property
    def version(self) -> int:
        return self.schema.version


Dispatch = Callable[[RequestContext, Entity], Outcome]
PrivateDispatch = Callable[["Connection", PrivateRequest], Outcome]


class ResponseWriter(Protocol):
    """A `Schema`, or what stands for one where the request is private."""

    def write_response(self, correlation_id: int, response: Response) -> list[Part]: ...


class _PrivateWriter:
    def write_response(self, correlation_id: int, response: Response) -> list[Part]:
        return [response.to_bytes(correlation_id)]


_PRIVATE_WRITER: Final = _PrivateWriter()


class _Slot:
    """A response's place in the queue."""

    __slots__ = ("future", "parts")

    def __init__(self) -> None:
        self.parts: list[Part] | None = None
        self.future: asyncio.Future[Response] | None = None


class ProtocolViolationError(Exception):
    """The client sent what no request can be; the connection is closed."""


class _FileCutShortError(OSError):
    """A segment is shorter than what was written to it: somebody cut it off."""


class AbandonConnectionError(Exception):
    """Raised by a handler that has no other way to answer than to close the connection."""


class Connection:
    def __init__(
        self,
        sock: socket.socket,
        *,
        peer_host: str,
        listener: str,
        loop: asyncio.AbstractEventLoop,
        dispatch: Dispatch,
        dispatch_private: PrivateDispatch,
        limits: ConnectionLimits,
        on_closed: Callable[["Connection"], None],
    ) -> None:
        self.peer_host = peer_host
        self.listener = listener
        self._socket = sock
        self._fd = sock.fileno()
        self._loop = loop
        self._dispatch = dispatch
        self._dispatch_private = dispatch_private
        self.peer: PeerIdentity | None = None
        self._limits = limits
        self._on_closed = on_closed
        self._closed = False
        self._draining = False

        # Bytes received and not yet consumed are buffer[start:end].
        self._buffer = bytearray(_INITIAL_BUFFER_BYTES)
        self._view = memoryview(self._buffer)
        self._start = 0
        self._end = 0
        self._reading = False
        self._turn_scheduled = False
        self._serial_task: asyncio.Future[Response] | None = None

        self._slots: deque[_Slot] = deque()
        self._out: deque[Part] = deque()
        self._writing = False

        self._active_at = loop.time()
        self._frame_since: float | None = None
        self._send_progress_at = self._active_at
        self._resume_reading()

    def __repr__(self) -> str:
        return f"<connection from {self.peer_host} fd={self._fd}>"

    # ---- receiving

    def _on_readable(self) -> None:
        if self._start == self._end:
            self._start = self._end = 0
        try:
            count = self._socket.recv_into(self._view[self._end :])
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            self.close(f"receive failed: {error}")
            return
        if count == 0:
            self.close("closed by the client")
            return
        self._end += count
        self._active_at = self._loop.time()
        self._serve_buffered()

    def _serve_buffered(self) -> None:
        """Dispatches the whole frames in the buffer, as far as the limits on a connection allow."""
        frames = 0
        try:
            while not self._closed and self._may_dispatch():
                frame = self._next_frame()
                if frame is None:
                    break
                self._serve(frame)
                frames += 1
                if frames == _FRAMES_PER_TURN and self._end > self._start:
                    self._schedule_turn()
                    break
        except (ProtocolViolationError, MalformedRequestError, AbandonConnectionError) as violation:
            self.close(str(violation), level=logging.WARNING)
        except Exception:
            # A defect of ours must not take the node down, nor leave this client waiting.
            log.exception("%r: closed by an internal error", self)
            self.close("internal error")
        if self._closed:
            return
        self._send_ready()
        if self._end > self._start and self._frame_since is None and self._may_dispatch():
            self._schedule_turn()  # there was no room for the frames that are left, and now there is
        self._settle_reading()

    def _may_dispatch(self) -> bool:
        return (
            self._serial_task is None
            and not self._draining
            and not self._writing
            and len(self._slots) < self._limits.max_pipelined_requests
        )

    def _next_frame(self) -> memoryview | None:
        """The next frame's body if it is there whole. The view is good until the buffer is touched again."""
        start, available = self._start, self._end - self._start
        if available >= _SIZE.size:
            (size,) = _SIZE.unpack_from(self._buffer, start)
            self._check_size(size, start, available)
            if available >= _SIZE.size + size:
                self._frame_since = None
                self._start = start + _SIZE.size + size
                return self._view[start + _SIZE.size : self._start].toreadonly()
            self._make_room(_SIZE.size + size)
        else:
            self._make_room(_SIZE.size)
        if self._end > self._start and self._frame_since is None:
            self._frame_since = self._loop.time()
        return None

    def _check_size(self, size: int, start: int, available: int) -> None:
        if size <= 0 or size > self._limits.max_request_bytes:
            raise ProtocolViolationError(
                f"a frame of {size} bytes is outside 1 to {self._limits.max_request_bytes} "
                f"(socket.request.max.bytes)"
            )
        if size > self._limits.max_control_request_bytes and available >= _SIZE.size + 2:
            (api_key,) = struct.unpack_from(">h", self._buffer, start + _SIZE.size)
            if api_key != ApiKey.PRODUCE and (self.peer is None or api_key < FIRST_PRIVATE_KEY):
                raise ProtocolViolationError(
                    f"a request of {size} bytes for API {api_key} is over "
                    f"{self._limits.max_control_request_bytes} bytes"
                )

    def _make_room(self, needed: int) -> None:
        """Moves what is left to the front, and grows the buffer as bytes really arrive, never by promise."""
        left = self._end - self._start
        if left == len(self._buffer):
            self._replace_buffer(min(2 * len(self._buffer), max(needed, _INITIAL_BUFFER_BYTES)))
        elif left == 0:
            self._start = self._end = 0
            if len(self._buffer) > _KEPT_BUFFER_BYTES and needed <= _INITIAL_BUFFER_BYTES:
                self._replace_buffer(_INITIAL_BUFFER_BYTES)
        elif self._start and needed > len(self._buffer) - self._start:
            self._view[:left] = self._view[self._start : self._end]
            self._start, self._end = 0, left

    def _replace_buffer(self, capacity: int) -> None:
        left = self._end - self._start
        buffer = bytearray(capacity)
        buffer[:left] = self._view[self._start : self._end]
        self._view.release()
        self._buffer, self._view = buffer, memoryview(buffer)
        self._start, self._end = 0, left

    def _schedule_turn(self) -> None:
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turn_scheduled = False
        if not self._closed:
            self._serve_buffered()

    def _settle_reading(self) -> None:
        """Reads on while there is room for another request; otherwise the kernel holds the client back."""
        if self._may_dispatch() and not self._turn_scheduled:
            self._resume_reading()
        else:
            self._pause_reading()

    def _resume_reading(self) -> None:
        if not self._reading:
            self._reading = True
            self._loop.add_reader(self._fd, self._on_readable)

    def _pause_reading(self) -> None:
        if self._reading:
            self._reading = False
            self._loop.remove_reader(self._fd)
        self._frame_since = None

    # ---- serving

    def _serve(self, frame: memoryview) -> None:
        peek = peek_request(frame)
        if peek.api_key >= FIRST_PRIVATE_KEY:
            self._serve_private(peek, frame)
            return
        try:
            schema = supported_schema(peek)
        except UnsupportedVersionError as error:
            self._refuse_version(peek, error)
            return
        header, body, records = schema.read_request(frame)
        context = RequestContext(schema, header.client_id, self.peer_host, self.listener, records, self.peer)
        self._queue(self._dispatch(context, body), schema, peek.correlation_id)

    def _serve_private(self, peek: RequestPeek, frame: memoryview) -> None:
        try:
            request = decode_request(peek.api_key, frame[8:])
        except MalformedPrivateMessage as error:
            raise ProtocolViolationError(str(error)) from error
        frame.release()
        self._queue(self._dispatch_private(self, request), _PRIVATE_WRITER, peek.correlation_id)

    def _queue(self, outcome: Outcome, writer: ResponseWriter, correlation_id: int) -> None:
        if isinstance(outcome, NoResponse):
            return
        slot = _Slot()
        self._slots.append(slot)
        if isinstance(outcome, asyncio.Future):
            if isinstance(outcome, asyncio.Task):
                self._serial_task = outcome
            else:
                slot.future = outcome
            outcome.add_done_callback(lambda future: self._complete(slot, writer, correlation_id, future))
        else:
            self._fill(slot, writer, correlation_id, outcome)

    def _refuse_version(self, peek: RequestPeek, error: UnsupportedVersionError) -> None:
        """A client that asks for versions in a version we lack learns in v0 which there are (KIP-511)."""
        if peek.api_key != ApiKey.API_VERSIONS:
            raise ProtocolViolationError(str(error)) from error
        schema = schema_for(ApiKey.API_VERSIONS, 0)
        context = RequestContext(schema, None, self.peer_host, self.listener)
        slot = _Slot()
        self._slots.append(slot)
        self._fill(slot, schema, peek.correlation_id, self._dispatch(context, None))

    def _fill(self, slot: _Slot, writer: ResponseWriter, correlation_id: int, response: Response) -> None:
        slot.parts = writer.write_response(correlation_id, response)

    def _complete(
        self, slot: _Slot, writer: ResponseWriter, correlation_id: int, future: "asyncio.Future[Response]"
    ) -> None:
        if future is self._serial_task:
            self._serial_task = None
        if future.cancelled():
            self.close("the node is stopping")
            return
        error = future.exception()
        if error is not None:
            log.error("%r: a request failed", self, exc_info=error)
            self.close("internal error")
        if self._closed:
            return
        try:
            self._fill(slot, writer, correlation_id, future.result())
        except Exception:
            log.exception("%r: closed by a response that cannot be written", self)
            self.close("internal error")
            return
        self._active_at = self._loop.time()
        self._send_ready()
        if not self._closed:
            if self._end > self._start:
                self._schedule_turn()
            self._settle_reading()

    # ---- sending

    def _send_ready(self) -> None:
        slots = self._slots
        while slots and (parts := slots[0].parts) is not None:
            slots.popleft()
            self._out.extend(parts)
        if self._out and not self._writing:
            self._send_progress_at = self._loop.time()
            self._send()

    def _send(self) -> None:
        """Sends until all is out, the socket is full, or this connection has had its turn."""
        budget = _SEND_BYTES_PER_TURN
        try:
            while self._out and budget > 0:
                if isinstance(self._out[0], bytes):
                    budget -= self._send_bytes()
                else:
                    budget -= self._send_file(self._out[0])
        except (BlockingIOError, InterruptedError):
            pass
        except _FileCutShortError as error:
            self.close(str(error), level=logging.ERROR)
            return
        except OSError as error:
            self.close(f"send failed: {error}")
            return
        if self._out:
            if budget < _SEND_BYTES_PER_TURN:
                self._send_progress_at = self._loop.time()
            if not self._writing:
                self._writing = True
                self._loop.add_writer(self._fd, self._on_writable)
        elif self._writing:
            self._writing = False
            self._loop.remove_writer(self._fd)

    def _on_writable(self) -> None:
        self._send()
        if not self._closed and not self._writing:
            self._active_at = self._loop.time()
            self._send_ready()
            self._serve_buffered()

    def _send_bytes(self) -> int:
        buffers: list[bytes] = []
        more = 0
        for part in self._out:
            if not isinstance(part, bytes):
                more = socket.MSG_MORE  # the records follow: let the kernel put them into one packet
                break
            if len(buffers) == _BUFFERS_PER_SEND:
                break
            buffers.append(part)
        sent = self._socket.sendmsg(buffers, (), more)
        left = sent
        for part in buffers:
            if left < len(part):
                if left:
                    self._out[0] = part[left:]
                break
            self._out.popleft()
            left -= len(part)
        return sent

    def _send_file(self, part: FilePart) -> int:
        sent = os.sendfile(self._fd, part.file.fileno(), part.position, part.length)
        if sent == 0:
            raise _FileCutShortError(f"{part.file} ends before the records that its index promises")
        if sent == part.length:
            self._out.popleft()
        else:
            self._out[0] = FilePart(part.file, part.position + sent, part.length - sent)
        return sent

    # ---- the end

    def overdue(self, now: float) -> str | None:
        """Why this connection should be closed at `now`, if it should."""
        limits = self._limits
        if self._writing:
            if now - self._send_progress_at > limits.frame_timeout_s:
                return "the client does not read its responses"
        elif self._frame_since is not None:
            if now - self._frame_since > limits.frame_timeout_s:
                return "a request was begun and not finished"
        elif not self._slots and now - self._active_at > limits.idle_timeout_s:
            return "idle"
        if not self._reading and self._is_hung_up():
            return "closed by the client"
        return None

    def _is_hung_up(self) -> bool:
        """While nothing is read from it, the end of a connection has to be looked for."""
        poll = select.poll()
        poll.register(self._fd, select.POLLRDHUP)
        return bool(poll.poll(0))

    def drain(self) -> None:
        """Takes no more requests; those dispatched are answered."""
        self._draining = True
        if not self._closed:
            self._pause_reading()

    @property
    def drained(self) -> bool:
        return self._closed or (not self._slots and not self._out)

    def close(self, reason: str, level: int = logging.DEBUG) -> None:
        if self._closed:
            return
        self._closed = True
        log.log(level, "%r: %s", self, reason)
        if self._reading:
            self._loop.remove_reader(self._fd)
        if self._writing:
            self._loop.remove_writer(self._fd)
        for slot in self._slots:
            if slot.future is not None:
                slot.future.cancel()  # nobody waits for it any more, so nothing else need
        self._slots.clear()
        self._out.clear()  # lets go of the segment files that responses refer to
        self._socket.close()
        self._on_closed(self)
