"""A node from start to stop: its parts, in the order in which they come up and go down.

Start: take hold of the data, open the session, load the logs, bind the listeners, register, run for
controller, accept. Stop: accept no more, answer what was asked, leave ZooKeeper, flush, mark clean.
The clock, the disk and the coordination store come from outside.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from kbus.config import BrokerConfig, Endpoint, TopicConfig
from kbus.config import broker as settings
from kbus.node.background import Background
from kbus.node.broker import Broker
from kbus.node.connection import ConnectionLimits, PeerIdentity
from kbus.node.controller import Controller
from kbus.node.dispatch import dispatcher, private_dispatcher
from kbus.node.log_settings import log_config
from kbus.node.membership import (
    Membership,
    MembershipError,
    cluster_secret,
    generate_broker_id,
    prepare_store,
)
from kbus.node.metadata import MetadataCache
from kbus.node.peer import Peer, PeerError, PeerRefusedError
from kbus.node.producer_ids import ProducerIds
from kbus.node.replication import Replication
from kbus.node.server import Server, ServerLimits
from kbus.protocol.errors import KafkaError
from kbus.protocol.private import Leave
from kbus.storage.checkpoints import MetaProperties
from kbus.storage.disk import Disk
from kbus.storage.manager import LogManager
from kbus.types import BrokerId
from kbus.zk import znodes
from kbus.zk.store import (
    Check,
    CoordinationStore,
    Delete,
    SessionState,
    StoreError,
    WatchEvent,
    WatchType,
)

log = logging.getLogger(__name__)

_DRAIN_TIMEOUT_S: Final = 10.0
_LEAVE_TIMEOUT_S: Final = 5.0
_REJOIN_DELAY_S: Final = 0.5
_FLUSH_THREADS: Final = 4
_MAX_CONTROL_REQUEST_BYTES: Final = 4 * 1024 * 1024


class StartError(Exception):
    """The node cannot start; the message says why and what to do."""


class Node:
    def __init__(
        self,
        config: BrokerConfig,
        *,
        log_dirs: Sequence[Path],
        store: CoordinationStore,
        disk: Disk,
        clock_ms: Callable[[], int],
        hostname: str,
    ) -> None:
        self._config = config
        self._store = store
        self._clock_ms = clock_ms
        self._hostname = hostname
        self._log_dirs = log_dirs
        self._logs = LogManager(
            [str(path) for path in log_dirs],
            log_config(config, TopicConfig(config)),
            disk=disk,
            clock=clock_ms,
        )
        self._executor = ThreadPoolExecutor(_FLUSH_THREADS, thread_name_prefix="flush")
        self._server: Server | None = None
        self._background: Background | None = None
        self._broker: Broker | None = None
        self._membership: Membership | None = None
        self._rejoining: asyncio.Task[None] | None = None
        self._stopping = False
        self.endpoints: tuple[Endpoint, ...] = ()

    @property
    def broker(self) -> Broker:
        assert self._broker is not None, "the node has been started"
        return self._broker

    # ---- start

    async def start(self) -> None:
        try:
            await self._start()
        except BaseException:
            await self._abandon()
            raise

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._logs.lock()
        if not any(directory.failure is None for directory in self._logs.directories):
            reasons = "; ".join(str(directory.failure) for directory in self._logs.directories)
            raise StartError(f"None of the data directories can be used: {reasons}.")
        await self._store.open()
        cluster_id = await prepare_store(self._store)
        broker_id = await self._identify(cluster_id)
        self._logs.load()
        self._broker = broker = Broker(
            broker_id=broker_id,
            config=self._config,
            metadata=MetadataCache(cluster_id),
            logs=self._logs,
            producer_ids=ProducerIds(broker_id, self._store),
            clock_ms=self._clock_ms,
            random_id=lambda: random.randrange(1, 2**31),
            loop=loop,
            executor=self._executor,
        )
        broker.secret = await cluster_secret(self._store)
        broker.controller = Controller(broker, self._store, broker.hello)
        broker.replication = Replication(broker, self._store, broker.hello)
        broker.dispatch = dispatcher(broker)
        self._server = Server(
            loop=loop,
            dispatch=broker.dispatch,
            dispatch_private=private_dispatcher(broker),
            limits=self._limits,
        )
        self._server.on_peer_gone = self._on_peer_gone
        self.endpoints = self._bind(self._server)
        self._membership = Membership(
            self._store,
            broker_id=broker_id,
            session_folder=self._log_dirs[0],
            session_timeout_ms=self._config[settings.ZOOKEEPER_SESSION_TIMEOUT_MS],
        )
        self._server.start_accepting()
        await self._join()
        await broker.informed.wait()
        broker.report_strays()
        self._store.listen(self._on_session_state)
        self._background = Background(broker)
        self._background.start()
        log.info("broker %d of cluster %s serves at %s", broker_id, cluster_id, self.bootstrap_servers)

    async def _identify(self, cluster_id: str) -> BrokerId:
        """The broker id, and that the data belongs to this broker of this cluster."""
        found = self._logs.read_meta_properties()
        configured = self._config[settings.BROKER_ID]
        if found is not None and found.cluster_id not in (None, cluster_id):
            raise StartError(
                f"The data in {self._log_dirs[0]} belongs to cluster {found.cluster_id}, but ZooKeeper has "
                f"cluster {cluster_id}; point zookeeper.connect or log.dirs to the right one."
            )
        if found is not None and found.broker_id is not None and configured not in (-1, found.broker_id):
            raise StartError(
                f"The data in {self._log_dirs[0]} belongs to broker {found.broker_id}, but broker.id is "
                f"{configured}; set broker.id or log.dirs to the right one."
            )
        if configured != -1:
            broker_id = BrokerId(configured)
        elif found is not None and found.broker_id is not None:
            broker_id = BrokerId(found.broker_id)
        else:
            broker_id = await generate_broker_id(self._store, self._config[settings.RESERVED_BROKER_MAX_ID])
        self._logs.write_meta_properties(MetaProperties(broker_id=broker_id, cluster_id=cluster_id))
        return broker_id

    def _limits(self) -> ServerLimits:
        config = self.broker.config
        max_request = config[settings.SOCKET_REQUEST_MAX_BYTES]
        return ServerLimits(
            max_connections=config[settings.MAX_CONNECTIONS],
            max_connections_per_ip=config[settings.MAX_CONNECTIONS_PER_IP],
            connection=ConnectionLimits(
                max_request_bytes=max_request,
                max_control_request_bytes=min(max_request, _MAX_CONTROL_REQUEST_BYTES),
                max_pipelined_requests=config[settings.QUEUED_MAX_REQUESTS_PER_CONNECTION],
                frame_timeout_s=config[settings.FRAME_TIMEOUT_MS] / 1000,
                idle_timeout_s=config[settings.CONNECTIONS_MAX_IDLE_MS] / 1000,
            ),
        )

    def _bind(self, server: Server) -> tuple[Endpoint, ...]:
        ports = {
            endpoint.listener: server.bind(endpoint.listener, endpoint.host, endpoint.port)
            for endpoint in self._config[settings.LISTENERS]
        }
        return self._config.advertised_endpoints(ports, self._hostname)

    @property
    def bootstrap_servers(self) -> str:
        return ",".join(f"{endpoint.host}:{endpoint.port}" for endpoint in self.endpoints)

    # ---- the session

    async def _join(self) -> None:
        """Registers this broker and takes over the cluster's state."""
        broker = self.broker
        assert self._membership is not None
        info = await self._membership.register(
            self.endpoints, self._config[settings.BROKER_RACK], self._clock_ms()
        )
        broker.epoch = info.epoch
        broker.informed.clear()
        await self._elect()

    async def _elect(self) -> None:
        """Runs for controller, now and whenever there is none."""
        if self._stopping:
            return
        if await self._store.exists(znodes.CONTROLLER, self._on_controller_event) is None:
            won = await self.broker.controller.run_for_election()
        else:
            won = not self.broker.controller.is_active and await self.broker.controller.run_for_election()
        if won:
            await self._store.exists(znodes.CONTROLLER, self._on_controller_event)

    def _on_controller_event(self, event: WatchEvent) -> None:
        if event.type in (WatchType.DELETED, WatchType.CREATED) and not self._stopping:
            self.broker.spawn(self._elect_quietly())

    async def _elect_quietly(self) -> None:
        try:
            await self._elect()
        except StoreError as error:
            log.warning("cannot run for controller: %s", error)

    def _on_peer_gone(self, peer: PeerIdentity) -> None:
        if peer.broker_id == self.broker.metadata.controller_id and not self._stopping:
            self.broker.spawn(self._depose_dead_controller(peer))

    async def _depose_dead_controller(self, peer: PeerIdentity) -> None:
        """The controller's line broke off. If nobody listens at its port, its process is gone, and there is
        no need to wait for its session to time out. The check of the epoch's version makes sure that what
        is deleted is the role of that controller and not of one elected since."""
        broker = self.broker
        known = broker.metadata.brokers.get(peer.broker_id)
        endpoint = known.endpoints.get(self._config.inter_broker_listener) if known else None
        if endpoint is None:
            return
        epoch = broker.controller_epoch
        try:
            peer_connection = await Peer.connect(endpoint, broker.hello(), timeout_s=2.0)
            peer_connection.close()
        except PeerRefusedError:
            pass
        except PeerError:
            return
        else:
            return
        try:
            data, stat = await self._store.get(znodes.CONTROLLER_EPOCH)
            if znodes.decode_controller_epoch(data) != epoch:
                return
            await self._store.multi([Check(znodes.CONTROLLER_EPOCH, stat.version), Delete(znodes.CONTROLLER)])
            log.warning("controller %d refuses connections and is deposed", peer.broker_id)
        except StoreError as error:
            log.info("controller %d is not deposed: %s", peer.broker_id, error)

    def _on_session_state(self, state: SessionState) -> None:
        if self._stopping:
            return
        log.info("the ZooKeeper session is %s", state.name.lower())
        if state is SessionState.LOST:
            # First of all: whoever is elected now must not find this node still acting.
            self.broker.controller.resign()
            self.broker.stop_leading()
        elif state is SessionState.SUSPENDED:
            self.broker.controller.resign()
        if state is not SessionState.SUSPENDED and (self._rejoining is None or self._rejoining.done()):
            self._rejoining = self.broker.spawn(self._rejoin())

    async def _rejoin(self) -> None:
        """After a connection or a session was lost: comes back, however long it takes."""
        while not self._stopping:
            try:
                if self._store.state is SessionState.LOST:
                    await self._store.open()
                await self._store.wait_connected()
                await self._join()
                return
            except (StoreError, MembershipError, OSError) as error:
                log.warning("cannot rejoin the cluster yet: %s", error)
            except Exception:
                log.exception("cannot rejoin the cluster yet")
            await asyncio.sleep(_REJOIN_DELAY_S)

    # ---- stop

    async def stop(self) -> None:
        self._stopping = True
        if self._rejoining is not None:
            self._rejoining.cancel()
        assert self._server is not None
        assert self._background is not None
        await self._leave()
        await self._background.stop()
        await self._server.drain(_DRAIN_TIMEOUT_S, on_draining=self.broker.begin_drain)
        await self.broker.settle()
        self.broker.controller.resign()
        self.broker.stop_leading()
        self.broker.replication.stop()
        self.broker.checkpoint_high_watermarks()
        broker_epoch = self.broker.epoch
        await asyncio.get_running_loop().run_in_executor(
            self._executor, lambda: self._logs.close(clean=True, broker_epoch=broker_epoch)
        )
        await self._store.close()
        self._executor.shutdown()
        log.info("stopped cleanly")

    async def _leave(self) -> None:
        """Hands leadership to others before it goes, so that clients hardly notice."""
        broker = self.broker
        if len(broker.metadata.brokers) < 2:
            return
        try:
            if broker.controller.is_active:
                await broker.controller.leave(broker.id, broker.epoch)
            else:
                await broker.ask_controller(Leave(broker_id=broker.id, broker_epoch=broker.epoch))
        except KafkaError as error:
            log.warning("cannot hand over leadership: %s", error)
            return
        deadline = asyncio.get_running_loop().time() + _LEAVE_TIMEOUT_S
        while asyncio.get_running_loop().time() < deadline and any(  # noqa: ASYNC110
            p.is_leader and len(p.isr) > 1 for p in broker.partitions()
        ):
            await asyncio.sleep(0.005)

    async def _abandon(self) -> None:
        """After a failed start: lets go of everything. The logs count as not cleanly closed."""
        if self._server is not None:
            self._server.stop_accepting()
        await self._store.close()
        self._logs.close(clean=False)
        self._executor.shutdown()
