"""Async tests, one real ZooKeeper for all of them, and the faults that the contract suite asks for."""

import asyncio
import inspect
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kbus.config import ZooKeeperAddress
from kbus.zk.embedded import EmbeddedZooKeeper
from kbus.zk.memory import MemorySession, MemoryZooKeeper
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import CoordinationStore, SessionState

from .proxy import CuttableProxy

SESSION_TIMEOUT_MS = 1000
PATIENCE_S = 50


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs `async def` tests, each on a loop of its own, and closes their world on the same loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def run() -> None:
        try:
            async with asyncio.timeout(120):
                await pyfuncitem.obj(**arguments)
        finally:
            for argument in arguments.values():
                if isinstance(argument, World):
                    await argument.aclose()

    asyncio.run(run())
    return True


async def until(condition: Callable[[], bool]) -> None:
    """Waits for something that happens on other threads or machines."""
    async with asyncio.timeout(PATIENCE_S):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.005)


class World:
    """A coordination service, its sessions, and what can go wrong between them."""

    async def session(self) -> Any:
        """A new open session."""
        raise NotImplementedError

    async def disconnect(self, store: Any) -> None:
        """The connection breaks and stays broken; returns at SUSPENDED."""
        raise NotImplementedError

    async def reconnect(self, store: Any) -> None:
        raise NotImplementedError

    async def expire(self, store: Any) -> None:
        """The server ends the session; returns when the store knows: LOST."""
        raise NotImplementedError

    def lose_next_answer(self, store: Any) -> None:
        """The next operation happens at the server, but the connection breaks before its answer arrives."""
        raise NotImplementedError

    async def aclose(self) -> None:
        raise NotImplementedError


class MemoryWorld(World):
    def __init__(self) -> None:
        self.server = MemoryZooKeeper()

    async def session(self) -> MemorySession:
        session = self.server.session()
        await session.open()
        return session

    async def disconnect(self, store: MemorySession) -> None:
        store.disconnect()

    async def reconnect(self, store: MemorySession) -> None:
        store.reconnect()

    async def expire(self, store: MemorySession) -> None:
        store.expire()

    def lose_next_answer(self, store: MemorySession) -> None:
        store.cut_at_next_answer()

    async def aclose(self) -> None:
        pass


class RealWorld(World):
    """Every session has a connection of its own through a proxy, and every test a chroot."""

    def __init__(self, server: EmbeddedZooKeeper) -> None:
        self._server = server
        self._chroot = f"/{uuid.uuid4().hex}"
        self._proxies: dict[CoordinationStore, CuttableProxy] = {}

    async def session(self, *, session_timeout_ms: int = SESSION_TIMEOUT_MS) -> ZooKeeperSession:
        proxy = CuttableProxy("127.0.0.1", self._server.port)
        await proxy.start()
        address = ZooKeeperAddress((("127.0.0.1", proxy.port),), self._chroot)
        session = ZooKeeperSession(
            address, session_timeout_ms=session_timeout_ms, connection_timeout_ms=PATIENCE_S * 1000
        )
        self._proxies[session] = proxy
        await session.open()
        return session

    def proxy(self, store: CoordinationStore) -> CuttableProxy:
        return self._proxies[store]

    async def disconnect(self, store: CoordinationStore) -> None:
        self._proxies[store].cut()
        await until(lambda: store.state is SessionState.SUSPENDED)

    async def reconnect(self, store: CoordinationStore) -> None:
        self._proxies[store].restore()

    async def expire(self, store: CoordinationStore) -> None:
        """Not simulated: it is cut off until the server has given it up, which an ephemeral of it shows."""
        path, _ = await store.create("/canary-", ephemeral=True, sequence=True)
        await self.disconnect(store)
        witness = await self.session()
        gone = asyncio.Event()
        if await witness.exists(path, lambda event: gone.set()) is not None:
            await gone.wait()
        await self.reconnect(store)
        await until(lambda: store.state is SessionState.LOST)

    def lose_next_answer(self, store: CoordinationStore) -> None:
        self._proxies[store].cut_at_next_answer()

    async def aclose(self) -> None:
        for session, proxy in self._proxies.items():
            proxy.restore()
            await session.close()
            await proxy.stop()


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedZooKeeper]:
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    asyncio.run(server.start())
    yield server
    asyncio.run(server.stop())


@pytest.fixture
def real_world(server: EmbeddedZooKeeper) -> RealWorld:
    return RealWorld(server)


@pytest.fixture
def memory_world() -> MemoryWorld:
    return MemoryWorld()


@pytest.fixture(params=["memory", "zookeeper"])
def world(request: pytest.FixtureRequest) -> World:
    """Both of them: what is tested with it is the contract of the coordination store."""
    name = "memory_world" if request.param == "memory" else "real_world"
    chosen: World = request.getfixturevalue(name)
    return chosen
