"""Listening sockets: accepts connections within limits, closes the slow and the idle, drains at the end."""

import asyncio
import errno
import logging
import resource
import socket
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kbus.node.connection import (
    Connection,
    ConnectionLimits,
    Dispatch,
    PeerIdentity,
    PrivateDispatch,
)

log = logging.getLogger(__name__)

_BACKLOG: Final = 1024
_SWEEP_INTERVAL_S: Final = 1.0
_ACCEPT_PAUSE_S: Final = 1.0
_ACCEPTS_PER_TURN: Final = 64
_DRAIN_POLL_S: Final = 0.005
_RESERVED_DESCRIPTORS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    max_connections: int
    max_connections_per_ip: int
    connection: ConnectionLimits


def _descriptors_for_connections() -> int:
    """Numbers are given from the lowest up. The last are kept for logs: without a descriptor for its next
    segment a partition would go offline, and clients alone must not be able to bring that about."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return sys.maxsize
    return int(limit - max(_RESERVED_DESCRIPTORS, limit // 10))


class ListenError(Exception):
    """A listener cannot be opened; the message names address and cause."""


class Server:
    def __init__(
        self,
        *,
        loop: asyncio.AbstractEventLoop,
        dispatch: Dispatch,
        dispatch_private: PrivateDispatch,
        limits: Callable[[], ServerLimits],
    ) -> None:
        """`limits` are asked for anew at each connection: they may be changed at any time."""
        self._loop = loop
        self._dispatch = dispatch
        self._dispatch_private = dispatch_private
        self.on_peer_gone: Callable[[PeerIdentity], None] = lambda _: None
        """Told when a connection of another node ends."""
        self._limits = limits
        self._listeners: list[tuple[str, socket.socket]] = []
        self._connections: set[Connection] = set()
        self._per_host: Counter[str] = Counter()
        self._sweep_timer: asyncio.TimerHandle | None = None
        self._refused = 0

    def bind(self, listener: str, host: str, port: int) -> int:
        """Opens a listener without accepting yet; returns its port (port 0 finds a free one)."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((host, port))
            sock.listen(_BACKLOG)
        except OSError as error:
            sock.close()
            if error.errno == errno.EADDRINUSE:
                cause = "the port is taken by another process; choose another with --set listeners=…"
            else:
                cause = error.strerror or str(error)
            raise ListenError(f"cannot listen on {host}:{port}: {cause}") from error
        self._listeners.append((listener, sock))
        bound_port: int = sock.getsockname()[1]
        return bound_port

    def start_accepting(self) -> None:
        for listener, sock in self._listeners:
            self._watch(listener, sock)
        self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    @property
    def connection_count(self) -> int:
        return len(self._connections)

    def _watch(self, listener: str, sock: socket.socket) -> None:
        if sock.fileno() >= 0:
            self._loop.add_reader(sock.fileno(), self._accept, listener, sock)

    def _accept(self, listener: str, listening: socket.socket) -> None:
        for _ in range(_ACCEPTS_PER_TURN):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors or memory: trying again at once would only burn the processor.
                log.error("cannot accept connections for %s s: %s", _ACCEPT_PAUSE_S, error)
                self._loop.remove_reader(listening.fileno())
                self._loop.call_later(_ACCEPT_PAUSE_S, self._watch, listener, listening)
                return
            self._admit(listener, sock, address[0])

    def _admit(self, listener: str, sock: socket.socket, host: str) -> None:
        limits = self._limits()
        if (
            len(self._connections) >= limits.max_connections
            or self._per_host[host] >= limits.max_connections_per_ip
            or sock.fileno() >= _descriptors_for_connections()
        ):
            sock.close()
            self._refused += 1
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client whose machine is gone says no goodbye, and may have asked to be answered in a month.
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._per_host[host] += 1
        connection = Connection(
            sock,
            peer_host=host,
            listener=listener,
            loop=self._loop,
            dispatch=self._dispatch,
            dispatch_private=self._dispatch_private,
            limits=limits.connection,
            on_closed=self._forget,
        )
        self._connections.add(connection)

    def _forget(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection.peer is not None:
            self.on_peer_gone(connection.peer)
        self._per_host[connection.peer_host] -= 1
        if not self._per_host[connection.peer_host]:
            del self._per_host[connection.peer_host]

    def _sweep(self) -> None:
        now = self._loop.time()
        for connection in list(self._connections):
            reason = connection.overdue(now)
            if reason is not None:
                connection.close(reason, level=logging.INFO)
        if self._refused:
            log.warning(
                "refused %d connections over the limits (max.connections=%d, max.connections.per.ip=%d, "
                "%d of the files that this process may open)",
                self._refused,
                self._limits().max_connections,
                self._limits().max_connections_per_ip,
                _descriptors_for_connections(),
            )
            self._refused = 0
        self._sweep_timer = self._loop.call_later(_SWEEP_INTERVAL_S, self._sweep)

    def stop_accepting(self) -> None:
        if self._sweep_timer is not None:
            self._sweep_timer.cancel()
        for _, sock in self._listeners:
            if sock.fileno() >= 0:
                self._loop.remove_reader(sock.fileno())
                sock.close()

    async def drain(self, timeout_s: float, *, on_draining: Callable[[], None]) -> None:
        """Answers what was asked, within `timeout_s`, and closes every connection.

        `on_draining` runs once no more requests are taken: it lets long polls go."""
        self.stop_accepting()
        for connection in self._connections:
            connection.drain()
        on_draining()
        deadline = self._loop.time() + timeout_s
        while self._loop.time() < deadline and not all(c.drained for c in self._connections):  # noqa: ASYNC110
            await asyncio.sleep(_DRAIN_POLL_S)
        for connection in list(self._connections):
            connection.close("the node is stopping")
