"""A network that loses acknowledgements: the node has appended, and the client never hears of it."""

import contextlib
import socket
import struct
import threading
from types import TracebackType

_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")
_PRODUCE = 0


class ForgetfulProxy:
    """Passes frames on to `node_port`. Instead of each answer to a produce request whose number is in
    `losses`, counted from 1 over all connections, it closes the connection."""

    def __init__(self, node_port: int, losses: frozenset[int]) -> None:
        self._node = ("127.0.0.1", node_port)
        self._losses = losses
        self._answers = 0
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = [self._listener]
        self.lost = 0

    @property
    def port(self) -> int:
        port: int = self._listener.getsockname()[1]
        return port

    def __enter__(self) -> "ForgetfulProxy":
        self._threads[0].start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _hang_up(self._listener)
        self._threads[0].join()  # from here on there are no new ones
        for sock in self._sockets:
            _hang_up(sock)
        for thread in self._threads[1:]:
            thread.join()
        for sock in self._sockets:
            sock.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            node = socket.create_connection(self._node)
            produces: set[int] = set()
            self._sockets += (client, node)
            for pump in (self._pass_requests, self._pass_answers):
                thread = threading.Thread(target=pump, args=(client, node, produces))
                self._threads.append(thread)
                thread.start()

    def _pass_requests(self, client: socket.socket, node: socket.socket, produces: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _read_frame(client):
                api_key, _, correlation_id = _HEAD.unpack_from(frame, _SIZE.size)
                if api_key == _PRODUCE:
                    produces.add(correlation_id)
                node.sendall(frame)
        _hang_up(node)

    def _pass_answers(self, client: socket.socket, node: socket.socket, produces: set[int]) -> None:
        with contextlib.suppress(OSError):
            while frame := _read_frame(node):
                (correlation_id,) = _SIZE.unpack_from(frame, _SIZE.size)
                if correlation_id in produces and self._loses_this_one():
                    break
                client.sendall(frame)
        _hang_up(client)
        _hang_up(node)

    def _loses_this_one(self) -> bool:
        with self._lock:
            self._answers += 1
            is_lost = self._answers in self._losses
            self.lost += is_lost
            return is_lost


def _read_frame(sock: socket.socket) -> bytes:
    """Size and body; nothing at the end of the stream."""
    frame = bytearray()
    wanted = _SIZE.size
    while len(frame) < wanted:
        received = sock.recv(wanted - len(frame))
        if not received:
            return b""
        frame += received
        if wanted == _SIZE.size == len(frame):
            wanted += _SIZE.unpack(frame)[0]
    return bytes(frame)


def _hang_up(sock: socket.socket) -> None:
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
