"""Ends somebody else's ZooKeeper session, at once and for good, as if it had timed out.

A session belongs to whoever knows its id and password: a second connection that gives both takes it over,
and may close it. The id is public, being the owner of the ephemeral nodes. The password is not random: the
server computes it from the id, with Java's generator and a constant (ZooKeeperServer.generatePasswd), so that
every server of an ensemble can check it. The victim's connection breaks, and when it comes back, it is told
that its session has expired: what happens after a long pause, without the wait for it.
"""

import asyncio
import struct
from collections.abc import Sequence
from typing import Final

_SUPER_SECRET: Final = 0xB3415C00
_MULTIPLIER: Final = 0x5DEECE66D
_STATE_MASK: Final = (1 << 48) - 1
_PASSWORD_BYTES: Final = 16

_SIZE = struct.Struct(">i")
_CONNECT = struct.Struct(">iqiqi16s?")
"""ConnectRequest: protocol, last zxid seen, timeout, session, length of the password, password, read only."""
_CONNECTED = struct.Struct(">iiq")
"""The beginning of ConnectResponse: protocol, timeout, session."""
_HEADER = struct.Struct(">ii")
_REPLY = struct.Struct(">iqi")
_CLOSE_SESSION: Final = -11
_XID: Final = 1
_TIMEOUT_MS: Final = 4000
_MAX_FRAME_BYTES: Final = 1 << 20


class SessionError(Exception):
    """The session could not be ended. The text is a sentence for people."""


def session_password(session_id: int) -> bytes:
    """The first 16 bytes of java.util.Random with the seed `session_id ^ secret`."""
    state = ((session_id ^ _SUPER_SECRET) ^ _MULTIPLIER) & _STATE_MASK
    password = bytearray()
    while len(password) < _PASSWORD_BYTES:
        state = (state * _MULTIPLIER + 0xB) & _STATE_MASK
        password += (state >> 16).to_bytes(4, "little")
    return bytes(password)


async def expire_session(
    servers: Sequence[tuple[str, int]], session_id: int, *, timeout_s: float = 5.0
) -> None:
    """Returns when the session and its ephemeral nodes are gone. Raises SessionError."""
    reasons = []
    for host, port in servers:
        try:
            async with asyncio.timeout(timeout_s):
                await _take_over_and_close(host, port, session_id)
            return
        except (OSError, asyncio.IncompleteReadError) as error:
            reasons.append(f"{host}:{port}: {str(error) or 'no answer'}")
    raise SessionError(f"No ZooKeeper server ended session {session_id:#x} ({'; '.join(reasons)}).")


async def _take_over_and_close(host: str, port: int, session_id: int) -> None:
    reader, writer = await asyncio.open_connection(host, port)
    try:
        password = session_password(session_id)
        _send(writer, _CONNECT.pack(0, 0, _TIMEOUT_MS, session_id, _PASSWORD_BYTES, password, False))
        _, timeout_ms, accepted_id = _CONNECTED.unpack_from(await _receive(reader))
        if accepted_id != session_id or timeout_ms <= 0:
            raise SessionError(f"ZooKeeper at {host}:{port} has no session {session_id:#x} any more.")
        _send(writer, _HEADER.pack(_XID, _CLOSE_SESSION))
        xid, _, error_code = _REPLY.unpack_from(await _receive(reader))
        if xid != _XID or error_code:
            raise SessionError(f"ZooKeeper at {host}:{port} did not close session {session_id:#x}.")
    finally:
        writer.close()


def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(_SIZE.pack(len(data)) + data)


async def _receive(reader: asyncio.StreamReader) -> bytes:
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if not 0 <= size <= _MAX_FRAME_BYTES:
        raise OSError(f"an answer of {size} bytes was announced")
    return await reader.readexactly(size)
