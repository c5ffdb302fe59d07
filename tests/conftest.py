"""Fixtures that need processes: one ZooKeeper for the whole run, nodes of their own for those who ask."""

import asyncio
import itertools
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kbus.zk.embedded import EmbeddedZooKeeper
from tests.nodes import NodeProcess

_chroots = itertools.count()

# A shell starts background jobs with SIGINT ignored, and children inherit that: tests of Ctrl-C need it.
signal.signal(signal.SIGINT, signal.default_int_handler)
NodeFactory = Callable[..., NodeProcess]


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """host:port of a real server. Use a chroot of your own: `zookeeper` gives one."""
    loop = asyncio.new_event_loop()
    server = EmbeddedZooKeeper(tmp_path_factory.mktemp("zookeeper"))
    loop.run_until_complete(server.start())
    try:
        yield str(server.address)
    finally:
        loop.run_until_complete(server.stop())
        loop.close()


@pytest.fixture
def zookeeper(zookeeper_server: str) -> str:
    """A connect string to an empty tree."""
    return f"{zookeeper_server}/test-{next(_chroots)}"


@pytest.fixture
def start_node(tmp_path: Path, zookeeper: str) -> Iterator[NodeFactory]:
    """Starts nodes with settings of their own: `start_node({"log.segment.bytes": "4096"})`."""
    nodes: list[NodeProcess] = []

    def start(settings: dict[str, str] | None = None) -> NodeProcess:
        node = NodeProcess(tmp_path / "node", zookeeper=zookeeper, settings=settings)
        nodes.append(node)
        node.start()
        return node

    yield start
    for node in nodes:
        node.__exit__(None, None, None)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, zookeeper_server: str) -> Iterator[NodeProcess]:
    """One node for the tests of a module that leave it as it is, each with topics of its own."""
    folder = tmp_path_factory.mktemp("node")
    with NodeProcess(folder, zookeeper=f"{zookeeper_server}/module-{next(_chroots)}") as process:
        yield process
