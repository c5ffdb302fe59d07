"""Nodes that say "I am here": created once, owned by the session of whoever it is about."""

import asyncio
from contextlib import suppress
from functools import partial

from kbus.zk.store import CoordinationStore, NodeExists, NoNode, Stat, WatchEvent


async def register(store: CoordinationStore, path: str, data: bytes, *, wait_ms: int = 0) -> Stat:
    """Creates an ephemeral node, whose czxid is the epoch of this registration.

    A node that this store's own earlier session left behind is deleted and made again. One of somebody else
    is an error, NodeExists, but may first be waited for: a process that was killed and starts again finds the
    node of its former self there until that session times out.

    If the connection breaks on the way, ConnectionLost is raised; calling it again is safe.
    """
    deadline = asyncio.get_running_loop().time() + wait_ms / 1000
    while True:
        try:
            _, stat = await store.create(path, data, ephemeral=True, makepath=True)
        except NodeExists:
            pass
        else:
            return stat
        changed = asyncio.Event()
        found = await store.exists(path, partial(_set, changed))
        if found is None:
            continue
        if found.ephemeral_owner == store.session_id:
            # The answer to an earlier attempt was lost. The data is written again: it may be newer.
            return await store.set(path, data, found.version)
        if found.ephemeral_owner in store.past_session_ids:
            with suppress(NoNode):
                await store.delete(path, found.version)
            continue
        try:
            async with asyncio.timeout_at(deadline):
                await changed.wait()
        except TimeoutError:
            raise NodeExists(
                f"{path} belongs to another session ({found.ephemeral_owner & (1 << 64) - 1:#x})"
            ) from None


def _set(changed: asyncio.Event, event: WatchEvent) -> None:
    changed.set()
