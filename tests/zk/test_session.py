"""What only a session with a real server can show."""

import asyncio
import socket
import threading
import time

import pytest

from kbus.config import ZooKeeperAddress
from kbus.zk import session as session_module
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import ConnectionLost, SessionState

from .conftest import RealWorld, until


async def test_no_session_opens_before_the_owner_has_dealt_with_the_loss(
    real_world: RealWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """kazoo is kept from being stopped after the loss, so that it has every chance to reconnect by itself."""
    may_stop = threading.Event()
    stop = session_module._stop
    monkeypatch.setattr(session_module, "_stop", lambda client: (may_stop.wait(), stop(client)))
    store = await real_world.session()
    await real_world.expire(store)
    proxy = real_world.proxy(store)
    accepted_at_loss = proxy.accepted
    try:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.5):
                await until(lambda: proxy.accepted > accepted_at_loss)
    finally:
        may_stop.set()
    await store.open()
    assert proxy.accepted == accepted_at_loss + 1


async def test_without_a_server_opening_fails_with_a_sentence(real_world: RealWorld) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = ZooKeeperAddress((nobody.getsockname(),))
        store = ZooKeeperSession(address, session_timeout_ms=1000, connection_timeout_ms=200)
        with pytest.raises(
            ConnectionLost, match=r"No answer from ZooKeeper at 127\.0\.0\.1:\d+ within 200 ms; "
        ):
            await store.open()
    assert store.state is SessionState.CLOSED


async def test_a_server_that_comes_late_is_waited_for(real_world: RealWorld) -> None:
    store = await real_world.session()
    await store.close()
    proxy = real_world.proxy(store)
    proxy.cut()
    attempts = proxy.accepted
    opening = asyncio.create_task(store.open())
    await until(lambda: proxy.accepted > attempts + 1)
    assert not opening.done()
    proxy.restore()
    await opening
    assert store.state is SessionState.CONNECTED


async def test_closing_without_a_connection_is_quick_and_leaves_no_thread(real_world: RealWorld) -> None:
    store = await real_world.session()
    await real_world.disconnect(store)
    before = time.monotonic()
    await store.close()
    assert time.monotonic() - before < 3
    assert not [thread for thread in threading.enumerate() if "zk_loop" in thread.name]


async def test_operations_under_way_end_when_the_connection_does(real_world: RealWorld) -> None:
    store = await real_world.session()
    real_world.lose_next_answer(store)
    async with asyncio.timeout(5):
        results = await asyncio.gather(*(store.exists("/") for _ in range(20)), return_exceptions=True)
    assert all(isinstance(result, ConnectionLost) for result in results)


async def test_a_cancelled_call_harms_nobody(real_world: RealWorld) -> None:
    store = await real_world.session()
    call = asyncio.create_task(store.exists("/"))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    assert call.cancelled()
    assert await store.exists("/none") is None


async def test_events_reach_the_loops_own_thread_only(real_world: RealWorld) -> None:
    store = await real_world.session()
    threads: set[int] = set()
    store.listen(lambda state: threads.add(threading.get_ident()))
    await store.create("/node")
    await store.get("/node", lambda event: threads.add(threading.get_ident()))
    await store.set("/node", b"1")
    await real_world.disconnect(store)
    await real_world.reconnect(store)
    await store.wait_connected()
    assert threads == {threading.get_ident()}
