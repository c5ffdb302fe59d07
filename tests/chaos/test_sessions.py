import asyncio

import pytest

from kbus.chaos.coordination import coordination
from kbus.chaos.sessions import SessionError, expire_session, session_password
from kbus.config import ZooKeeperAddress
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import SessionState


async def opened(zookeeper: str) -> ZooKeeperSession:
    session = ZooKeeperSession(
        ZooKeeperAddress.parse(zookeeper), session_timeout_ms=60_000, connection_timeout_ms=10_000
    )
    await session.open()
    return session


def test_the_password_is_that_of_javas_generator() -> None:
    # new Random(42L ^ 0xB3415C00L).nextBytes(new byte[16])
    assert session_password(42).hex() == "c813ee495620c3a68794ef27a239e8a9"


def test_an_expired_session_loses_its_nodes_at_once_and_its_owner_is_told(zookeeper: str) -> None:
    async def scenario() -> None:
        victim = await opened(zookeeper)
        states: list[SessionState] = []
        lost = asyncio.Event()

        def on_state(state: SessionState) -> None:
            states.append(state)
            if state is SessionState.LOST:
                lost.set()

        victim.listen(on_state)
        await victim.create("/brokers/ids/7", b"", ephemeral=True, makepath=True)
        async with coordination(zookeeper) as witness:
            registration = await witness.registration(7)
            assert registration is not None
            assert registration.session_id == victim.session_id
            async with asyncio.timeout(10):  # far less than the session's 60 s
                await witness.expire(registration.session_id)
                assert await witness.registration(7) is None
                await lost.wait()
        await victim.close()

    asyncio.run(scenario())


def test_a_session_that_is_not_there_is_said(zookeeper_server: str) -> None:
    servers = ZooKeeperAddress.parse(zookeeper_server).servers
    with pytest.raises(SessionError, match="has no session 0x1234 any more"):
        asyncio.run(expire_session(servers, 0x1234))


def test_without_zookeeper_the_reason_is_said() -> None:
    with pytest.raises(SessionError, match="No ZooKeeper server ended session 0x1 "):
        asyncio.run(expire_session([("127.0.0.1", 1)], 1))


def test_the_next_controller_is_told_from_the_one_before(zookeeper: str) -> None:
    async def scenario() -> None:
        session = await opened(zookeeper)
        async with coordination(zookeeper) as witness:
            old = await witness.controller()
            assert tuple(old) == (None, 0)
            waiting = asyncio.create_task(witness.controller_after(old))
            await session.create("/controller", b'{"brokerid": 3, "timestamp": "1"}', ephemeral=True)
            await session.create("/controller_epoch", b"5")
            async with asyncio.timeout(10):
                assert await waiting == (3, 5)
        await session.close()

    asyncio.run(scenario())
