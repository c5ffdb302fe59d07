"""This broker's place in the cluster: its id and its registration."""

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from kbus.config import Endpoint
from kbus.core.cluster import Broker as BrokerInfo
from kbus.types import BrokerId
from kbus.zk import znodes
from kbus.zk.ephemeral import register
from kbus.zk.store import CoordinationStore, NodeExists, NoNode, ensure_path

log = logging.getLogger(__name__)

_SESSION_FILE = "zookeeper-session"
_SECRET_PATH = "/kbus/secret"


class MembershipError(Exception):
    """The broker cannot join; the message says why and what to do."""


class Membership:
    """Registers this broker under the session at hand.

    The id of that session is kept in a file beside the data. A process that was killed leaves its ephemeral
    nodes behind until their session times out; its successor, which holds the lock on the same data and so
    knows that the process is gone, recognises them by it and need not wait.
    """

    def __init__(
        self, store: CoordinationStore, *, broker_id: BrokerId, session_folder: Path, session_timeout_ms: int
    ) -> None:
        self._store = store
        self._broker_id = broker_id
        self._session_file = session_folder / _SESSION_FILE
        self._session_timeout_ms = session_timeout_ms

    async def register(self, endpoints: Sequence[Endpoint], rack: str | None, now_ms: int) -> BrokerInfo:
        for path in (znodes.broker_path(self._broker_id), znodes.CONTROLLER):
            await self._delete_if_left_behind(path)
        self._session_file.write_text(f"{self._store.session_id}\n", encoding="ascii")
        registration = znodes.BrokerRegistration(endpoints=tuple(endpoints), timestamp_ms=now_ms, rack=rack)
        try:
            stat = await register(
                self._store,
                znodes.broker_path(self._broker_id),
                registration.encode(),
                wait_ms=2 * self._session_timeout_ms,
            )
        except NodeExists as error:
            raise MembershipError(
                f"A broker with id {self._broker_id} is in the cluster already; "
                "give this one another broker.id, or stop the other."
            ) from error
        return BrokerInfo(
            id=self._broker_id,
            endpoints={endpoint.listener: endpoint for endpoint in endpoints},
            rack=rack,
            epoch=stat.czxid,
        )

    async def _delete_if_left_behind(self, path: str) -> None:
        try:
            last_session_id = int(self._session_file.read_text(encoding="ascii"))
        except (FileNotFoundError, ValueError):
            return
        stat = await self._store.exists(path)
        if stat is None or stat.ephemeral_owner != last_session_id:
            return
        if last_session_id != self._store.session_id:
            log.info("removing %s, left behind by this broker's last run", path)
            with suppress(NoNode):  # its session timed out just now
                await self._store.delete(path, stat.version)


async def prepare_store(store: CoordinationStore) -> str:
    """Makes the paths that a cluster needs, if this is its first broker; returns the cluster's id."""
    found = await asyncio.gather(*(store.exists(path) for path in znodes.PERSISTENT_PATHS))
    for path, stat in zip(znodes.PERSISTENT_PATHS, found, strict=True):
        if stat is None:
            await ensure_path(store, path)
    try:
        data, _ = await store.get(znodes.CLUSTER_ID)
        return znodes.decode_cluster_id(data)
    except NoNode:
        cluster_id = secrets.token_urlsafe(16)
    try:
        await store.create(znodes.CLUSTER_ID, znodes.encode_cluster_id(cluster_id), makepath=True)
    except NodeExists:
        data, _ = await store.get(znodes.CLUSTER_ID)
        return znodes.decode_cluster_id(data)
    return cluster_id


async def cluster_secret(store: CoordinationStore) -> str:
    """What nodes show each other, and no client has: made by the first broker, kept in ZooKeeper."""
    while True:
        try:
            data, _ = await store.get(_SECRET_PATH)
            return data.decode()
        except NoNode:
            with suppress(NodeExists):
                await store.create(_SECRET_PATH, secrets.token_urlsafe(32).encode(), makepath=True)


async def generate_broker_id(store: CoordinationStore, reserved_max: int) -> BrokerId:
    """A number that no other broker of the cluster has had, above those that people choose."""
    stat = await store.set(znodes.BROKER_SEQUENCE, b"")
    return BrokerId(reserved_max + stat.version)
