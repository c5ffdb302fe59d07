"""Runs a broker in the foreground: from its settings to its exit code."""

import asyncio
import ctypes
import gc
import logging
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kbus.client.local_cluster import LocalCluster, kbus_home, write_cluster
from kbus.config import BrokerConfig, ConfigError, ZooKeeperAddress
from kbus.config import broker as settings
from kbus.node.app import Node, StartError
from kbus.node.membership import MembershipError
from kbus.node.server import ListenError
from kbus.storage.checkpoints import UnreadableFile
from kbus.storage.disk import RealDisk
from kbus.storage.log_directory import DirectoryInUse
from kbus.storage.manager import InconsistentMetaProperties
from kbus.zk.embedded import EmbeddedZooKeeper, EmbeddedZooKeeperError
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import StoreError

log = logging.getLogger(__name__)

_DEFAULT_CLUSTER: Final = "default"
_DEFAULT_BROKER_ID: Final = "1"
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_KEPT_BYTES: Final = 32 * 1024 * 1024
_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"

_REFUSALS = (
    ConfigError,
    DirectoryInUse,
    EmbeddedZooKeeperError,
    InconsistentMetaProperties,
    ListenError,
    MembershipError,
    StartError,
    StoreError,
    UnreadableFile,
)
"""What a user can do something about: told in a sentence, without a traceback."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    broker_id: int
    bootstrap_servers: str
    zookeeper: str
    embedded_zookeeper: bool
    log_dirs: tuple[Path, ...]


class BrokerRefusedError(Exception):
    """The broker did not start. The text is a sentence for people."""


def _keep_freed_memory() -> None:
    """Has malloc use freed megabytes again instead of returning them to the system.

    Every produce request takes a buffer of its size and frees it. Returned each time, it costs a page fault
    for every 4 kB of it the next time: half of the processor time of a produce, measured."""
    with suppress(AttributeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _KEPT_BYTES)
        mallopt(_M_TRIM_THRESHOLD, 2 * _KEPT_BYTES)


def _allow_many_files() -> None:
    """A log in use holds a few files, a connection one: the soft limit of most shells is soon reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def run_broker(
    properties_path: Path | None,
    overrides: Mapping[str, str],
    on_ready: Callable[[RunningBroker], None] = lambda _: None,
) -> int:
    """Until SIGTERM or SIGINT; returns the exit code. Raises BrokerRefusedError."""
    _keep_freed_memory()
    _allow_many_files()
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT, stream=sys.stderr)
    try:
        config = _load(properties_path, overrides)
        for warning in config.warnings:
            log.warning(warning)
        asyncio.run(_serve(config, on_ready))
    except _REFUSALS as error:
        raise BrokerRefusedError(str(error)) from error
    return 0


def _load(properties_path: Path | None, overrides: Mapping[str, str]) -> BrokerConfig:
    """Without a file this is a complete single node, so that it needs no number given to it."""
    if properties_path is None:
        overrides = {settings.BROKER_ID.name: _DEFAULT_BROKER_ID, **overrides}
    return BrokerConfig.load(properties_path, overrides)


async def _serve(config: BrokerConfig, on_ready: Callable[[RunningBroker], None]) -> None:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_requested.set)
    folder = kbus_home() / _DEFAULT_CLUSTER
    zookeeper = await _zookeeper(config, folder)
    try:
        address = config[settings.ZOOKEEPER_CONNECT] or zookeeper.address  # type: ignore[union-attr]
        await _serve_with(config, address, folder, zookeeper, on_ready, stop_requested)
    finally:
        if zookeeper is not None:
            await zookeeper.stop()


async def _zookeeper(config: BrokerConfig, folder: Path) -> EmbeddedZooKeeper | None:
    if config[settings.ZOOKEEPER_CONNECT] is not None:
        return None
    server = EmbeddedZooKeeper(folder / "zookeeper")
    await server.start()
    return server


async def _serve_with(
    config: BrokerConfig,
    address: ZooKeeperAddress,
    folder: Path,
    zookeeper: EmbeddedZooKeeper | None,
    on_ready: Callable[[RunningBroker], None],
    stop_requested: asyncio.Event,
) -> None:
    log_dirs = config.log_dirs or (folder / "data",)
    store = ZooKeeperSession(
        address,
        session_timeout_ms=config[settings.ZOOKEEPER_SESSION_TIMEOUT_MS],
        connection_timeout_ms=config.zookeeper_connection_timeout_ms,
    )
    node = Node(
        config,
        log_dirs=log_dirs,
        store=store,
        disk=RealDisk(),
        clock_ms=lambda: time.time_ns() // 1_000_000,
        hostname=socket.gethostname(),
    )
    await node.start()
    try:
        if zookeeper is not None:
            write_cluster(
                LocalCluster(
                    folder=folder,
                    bootstrap_servers=node.bootstrap_servers,
                    zookeeper=str(address),
                    log_dirs=tuple(log_dirs),
                )
            )
        # What is there now stays to the end: the collector need not look at it again.
        gc.collect()
        gc.freeze()
        on_ready(
            RunningBroker(
                broker_id=node.broker.id,
                bootstrap_servers=node.bootstrap_servers,
                zookeeper=str(address),
                embedded_zookeeper=zookeeper is not None,
                log_dirs=tuple(log_dirs),
            )
        )
        await _until_stopped(stop_requested, node.broker.fatal, zookeeper)
    finally:
        await node.stop()
    if node.broker.fatal.done():
        raise StartError(f"The node has stopped: {node.broker.fatal.result()}")


async def _until_stopped(
    stop_requested: asyncio.Event, fatal: "asyncio.Future[str]", zookeeper: EmbeddedZooKeeper | None
) -> None:
    """Waits for a signal, or for the node to give up. An embedded ZooKeeper that dies meanwhile is started
    again, at the same port."""
    stopping = asyncio.ensure_future(stop_requested.wait())
    ends: set[asyncio.Future[Any]] = {stopping, fatal}
    try:
        while zookeeper is not None:
            dying = asyncio.ensure_future(zookeeper.wait())
            await asyncio.wait({*ends, dying}, return_when=asyncio.FIRST_COMPLETED)
            if any(end.done() for end in ends):
                dying.cancel()
                return
            log.error("ZooKeeper ended with code %s and is started again", dying.result())
            await zookeeper.restart()
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    finally:
        stopping.cancel()
