"""What ZooKeeper knows about the brokers of a cluster: their registrations, and who is controller."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, NamedTuple

from kbus.chaos.sessions import expire_session
from kbus.config import ZooKeeperAddress
from kbus.zk import znodes
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import CoordinationStore, NoNode

_SESSION_TIMEOUT_MS: Final = 10_000
_CONNECTION_TIMEOUT_MS: Final = 5_000
_POLL_S: Final = 0.005


class ControllerInfo(NamedTuple):
    broker: int | None
    epoch: int


class Registration(NamedTuple):
    session_id: int
    epoch: int
    """The broker epoch: different for each time that the broker registered."""


class Coordination:
    def __init__(self, store: CoordinationStore, address: ZooKeeperAddress) -> None:
        self._store = store
        self._address = address

    async def controller(self) -> ControllerInfo:
        try:
            epoch = znodes.decode_controller_epoch((await self._store.get(znodes.CONTROLLER_EPOCH))[0])
        except NoNode:
            epoch = 0
        try:
            data, _ = await self._store.get(znodes.CONTROLLER)
        except NoNode:
            return ControllerInfo(None, epoch)
        return ControllerInfo(znodes.ControllerRegistration.decode(data).broker_id, epoch)

    async def controller_after(self, old: ControllerInfo) -> ControllerInfo:
        """Waits for the next one."""
        while True:
            now = await self.controller()
            if now.broker is not None and now.epoch > old.epoch:
                return now
            await asyncio.sleep(_POLL_S)

    async def registration(self, broker: int) -> Registration | None:
        stat = await self._store.exists(znodes.broker_path(broker))
        return None if stat is None else Registration(stat.ephemeral_owner, stat.czxid)

    async def registration_after(self, broker: int, old: Registration | None) -> Registration:
        """Waits until the broker has registered anew."""
        while True:
            now = await self.registration(broker)
            if now is not None and (old is None or now.epoch != old.epoch):
                return now
            await asyncio.sleep(_POLL_S)

    async def expire(self, session_id: int) -> None:
        await expire_session(self._address.servers, session_id)


@asynccontextmanager
async def coordination(zookeeper: str) -> AsyncIterator[Coordination]:
    """Raises ConnectionLost if ZooKeeper does not answer."""
    address = ZooKeeperAddress.parse(zookeeper)
    store = ZooKeeperSession(
        address,
        session_timeout_ms=_SESSION_TIMEOUT_MS,
        connection_timeout_ms=_CONNECTION_TIMEOUT_MS,
        create_chroot=False,
    )
    await store.open()
    try:
        yield Coordination(store, address)
    finally:
        await store.close()
