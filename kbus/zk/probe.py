"""ZooKeeper's four-letter words: how a server is, asked over a plain connection, without a session."""

import asyncio
from dataclasses import dataclass

_MAX_ANSWER_BYTES = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerStatus:
    version: str
    mode: str
    """standalone, leader, follower or observer."""
    zxid: int
    node_count: int
    connections: int


async def four_letter_word(host: str, port: int, word: str, *, timeout_s: float) -> str:
    """Raises OSError or TimeoutError if there is no server."""
    async with asyncio.timeout(timeout_s):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(word.encode())
            answer = await reader.read(_MAX_ANSWER_BYTES)
            while chunk := await reader.read(_MAX_ANSWER_BYTES):
                answer += chunk
        finally:
            writer.close()
    return answer.decode(errors="replace")


async def server_status(host: str, port: int, *, timeout_s: float = 5.0) -> ServerStatus | None:
    """None if a server is there that does not serve, or does not say (`4lw.commands.whitelist`)."""
    answer = await four_letter_word(host, port, "srvr", timeout_s=timeout_s)
    fields = dict(line.split(": ", 1) for line in answer.splitlines() if ": " in line)
    if "Mode" not in fields:
        return None
    return ServerStatus(
        version=fields.get("Zookeeper version", "").partition("-")[0],
        mode=fields["Mode"],
        zxid=int(fields.get("Zxid", "0"), 16),
        node_count=int(fields.get("Node count", "0")),
        connections=int(fields.get("Connections", "0")),
    )
