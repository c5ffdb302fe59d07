"""A node and its ZooKeeper: what is written there, and what happens when it goes away."""

import asyncio
import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient

from kbus.protocol.api import ApiKey
from kbus.protocol.errors import ErrorCode
from kbus.zk.embedded import EmbeddedZooKeeper
from tests.conftest import NodeFactory
from tests.node.honest import HonestClient
from tests.node.wire import (
    Struct,
    Wire,
    batch_of,
    create_topic,
    fetch,
    list_offset,
    produce,
)
from tests.nodes import NodeProcess

PATIENCE_S = 30.0
SESSION_TIMEOUT_MS = "1000"


def eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, f"it never came to pass that {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def znodes(connect: str) -> Iterator[Any]:
    client = KazooClient(connect, timeout=10)
    client.start(PATIENCE_S)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def content(client: Any, path: str) -> Any:
    return json.loads(client.get(path)[0])


class OwnZooKeeper:
    """A server that this test may stop and start."""

    def __init__(self, folder: Path) -> None:
        self._loop = asyncio.new_event_loop()
        self._server = EmbeddedZooKeeper(folder)

    @property
    def address(self) -> str:
        return str(self._server.address)

    def start(self) -> None:
        self._loop.run_until_complete(self._server.start())

    def stop(self) -> None:
        self._loop.run_until_complete(self._server.stop())

    def start_again(self) -> None:
        """At the port that it had."""
        self._loop.run_until_complete(self._server.restart())

    def close(self) -> None:
        self.stop()
        self._loop.close()


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[OwnZooKeeper]:
    server = OwnZooKeeper(tmp_path / "own-zookeeper")
    try:
        server.start()
        yield server
    finally:
        server.close()


# ---- what is written


def test_znodes_are_those_of_kafka(start_node: NodeFactory) -> None:
    node = start_node({"broker.rack": "r1"})
    with Wire(node.port) as wire, znodes(node.zookeeper) as client:
        topic_id = create_topic(wire, "written", partitions=2, config={"retention.ms": "1000"})

        broker = content(client, "/brokers/ids/1")
        assert broker["endpoints"] == [f"PLAINTEXT://127.0.0.1:{node.port}"]
        assert (broker["host"], broker["port"], broker["rack"]) == ("127.0.0.1", node.port, "r1")
        assert broker["listener_security_protocol_map"] == {"PLAINTEXT": "PLAINTEXT"}
        assert broker["version"] == 5
        assert client.exists("/brokers/ids/1").ephemeralOwner

        controller = content(client, "/controller")
        assert (controller["brokerid"], controller["version"]) == (1, 2)
        assert client.exists("/controller").ephemeralOwner
        assert client.get("/controller_epoch")[0] == b"1"

        topic = content(client, "/brokers/topics/written")
        assert topic == {
            "version": 3,
            "partitions": {"0": [1], "1": [1]},
            "adding_replicas": {},
            "removing_replicas": {},
            "topic_id": _kafka_uuid(topic_id),
        }
        assert content(client, "/brokers/topics/written/partitions/1/state") == {
            "version": 1,
            "leader": 1,
            "leader_epoch": 0,
            "controller_epoch": 1,
            "isr": [1],
        }
        assert content(client, "/config/topics/written") == {"version": 1, "config": {"retention.ms": "1000"}}
        assert content(client, "/cluster/id")["version"] == "1"

        wire.call(ApiKey.INIT_PRODUCER_ID, 0, transactional_id=None, transaction_timeout=timedelta(seconds=1))
        block = content(client, "/latest_producer_id_block")
        assert (block["version"], block["broker"]) == (1, 1)
        assert (block["block_start"], block["block_end"]) == ("0", "999")


def _kafka_uuid(topic_id: uuid.UUID) -> str:
    return base64.urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")


def test_znodes_follow_every_change(start_node: NodeFactory) -> None:
    node = start_node()
    with Wire(node.port) as wire, znodes(node.zookeeper) as client:
        create_topic(wire, "changing")
        _set_retention(wire, "changing", "5000")
        assert content(client, "/config/topics/changing")["config"] == {"retention.ms": "5000"}
        wire.call(
            ApiKey.CREATE_PARTITIONS,
            3,
            topics=[Struct("CreatePartitionsTopic", name="changing", count=3, assignments=None)],
            timeout=timedelta(seconds=10),
            validate_only=False,
        )
        assert set(content(client, "/brokers/topics/changing")["partitions"]) == {"0", "1", "2"}
        assert sorted(client.get_children("/brokers/topics/changing/partitions")) == ["0", "1", "2"]
        wire.call(ApiKey.DELETE_TOPICS, 5, topic_names=["changing"], timeout=timedelta(seconds=10))
        for gone in (
            "/brokers/topics/changing",
            "/config/topics/changing",
            "/admin/delete_topics/changing",
        ):
            assert client.exists(gone) is None, gone


def _set_retention(wire: Wire, topic: str, value: str) -> ErrorCode:
    response = wire.call(
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        1,
        resources=[
            Struct(
                "AlterConfigsResource",
                resource_type=2,
                resource_name=topic,
                configs=[Struct("AlterableConfig", name="retention.ms", config_operation=0, value=value)],
            )
        ],
        validate_only=False,
    )
    code: ErrorCode = response.responses[0].error_code
    return code


def _retention(wire: Wire, topic: str) -> str:
    response = wire.call(
        ApiKey.DESCRIBE_CONFIGS,
        4,
        resources=[
            Struct(
                "DescribeConfigsResource",
                resource_type=2,
                resource_name=topic,
                configuration_keys=["retention.ms"],
            )
        ],
    )
    value: str = response.results[0].configs[0].value
    return value


def test_a_stopped_node_leaves_nothing_of_its_own_behind(start_node: NodeFactory) -> None:
    node = start_node()
    with znodes(node.zookeeper) as client:
        assert client.exists("/brokers/ids/1")
        node.stop()
        assert client.exists("/brokers/ids/1") is None
        assert client.exists("/controller") is None


def test_a_killed_node_is_back_at_once_although_its_session_lives_on(start_node: NodeFactory) -> None:
    """It knows the session of its former self, and does not wait for the minute that this one has left."""
    node = start_node({"zookeeper.session.timeout.ms": "60000"})
    with Wire(node.port) as wire:
        create_topic(wire, "kept")
        produce(wire, "kept", batch_of(b"value"))
    node.kill()
    began = time.monotonic()
    node.start()
    assert time.monotonic() - began < 20
    with Wire(node.port) as wire:
        assert b"value" in fetch(wire, "kept", 0).records


# ---- what cannot be read


def test_unreadable_topics_are_left_alone_and_the_others_served(start_node: NodeFactory) -> None:
    node = start_node()
    with Wire(node.port) as wire:
        for name in ("good", "bad-assignment", "bad-state", "bad-config"):
            create_topic(wire, name, config={"retention.ms": "1000"})
            produce(wire, name, batch_of(b"value"))
    node.stop()
    with znodes(node.zookeeper) as client:
        client.set("/brokers/topics/bad-assignment", b"{ not JSON")
        client.set("/brokers/topics/bad-state/partitions/0/state", b'{"leader": "nobody"}')
        client.set("/config/topics/bad-config", b'{"version":1,"config":{"retention.ms":"soon"}}')
        client.create("/brokers/topics/..%2fescaped", b"{}")
    node.start()
    with Wire(node.port) as wire:
        for name in ("good", "bad-config"):
            assert b"value" in fetch(wire, name, 0).records
        for name in ("bad-assignment", "bad-state"):
            assert fetch(wire, name, 0).error_code is ErrorCode.unknown_topic_or_partition
            segment = node.log_dir / f"{name}-0" / "00000000000000000000.log"
            assert segment.stat().st_size > 0, "its records are still there"
    assert "Traceback" not in node.log_text()
    assert {path.name for path in node.log_dir.iterdir() if path.is_dir()} == {
        "good-0",
        "bad-assignment-0",
        "bad-state-0",
        "bad-config-0",
    }


def test_a_deletion_cut_short_is_finished_at_the_next_start(start_node: NodeFactory) -> None:
    node = start_node()
    with Wire(node.port) as wire:
        create_topic(wire, "doomed")
        produce(wire, "doomed", batch_of(b"value"))
    node.kill()
    with znodes(node.zookeeper) as client:
        client.create("/admin/delete_topics/doomed")
        node.start()
        with Wire(node.port) as wire:
            assert fetch(wire, "doomed", 0).error_code is ErrorCode.unknown_topic_or_partition
            create_topic(wire, "doomed")
            assert produce(wire, "doomed", batch_of(b"new")).base_offset == 0
        assert client.get_children("/admin/delete_topics") == []


def test_a_topic_is_not_deleted_by_the_rest_of_an_earlier_deletion(start_node: NodeFactory) -> None:
    """A deletion whose last step failed is finished before a topic of that name is made, not after."""
    node = start_node()
    with znodes(node.zookeeper) as client:
        client.create("/admin/delete_topics/again")
        with Wire(node.port) as wire:
            create_topic(wire, "again")
            produce(wire, "again", batch_of(b"value"))
        assert client.exists("/admin/delete_topics/again") is None
    node.stop()
    node.start()
    with Wire(node.port) as wire:
        assert b"value" in fetch(wire, "again", 0).records


# ---- ZooKeeper goes away


def test_a_node_serves_without_zookeeper_and_changes_topics_when_it_is_back(
    tmp_path: Path, own_zookeeper: OwnZooKeeper
) -> None:
    with (
        NodeProcess(tmp_path / "node", zookeeper=own_zookeeper.address) as node,
        HonestClient(node.port) as honest,
    ):
        with Wire(node.port) as wire:
            create_topic(wire, "before", config={"retention.ms": "1000"})
        own_zookeeper.stop()
        with Wire(node.port) as wire:
            eventually(lambda: "suspended" in node.log_text(), "the node notices")
            honest.wait_for_rounds(10)
            refused = _try_to_create(wire, "meanwhile")
            assert refused in (ErrorCode.not_controller, ErrorCode.request_timed_out)
        own_zookeeper.start_again()
        with Wire(node.port) as wire:
            eventually(
                lambda: _try_to_create(wire, "after") in (ErrorCode.none, ErrorCode.topic_already_exists),
                "the node creates topics again",
            )
            assert produce(wire, "after", batch_of(b"value")).error_code is ErrorCode.none
            assert _set_retention(wire, "before", "2000") is ErrorCode.none
        assert "Traceback" not in node.log_text()


def _try_to_create(wire: Wire, name: str) -> ErrorCode:
    response = wire.call(
        ApiKey.CREATE_TOPICS,
        5,
        topics=[
            Struct(
                "CreatableTopic",
                name=name,
                num_partitions=1,
                replication_factor=1,
                assignments=[],
                configs=[],
            )
        ],
        timeout=timedelta(seconds=5),
    )
    code: ErrorCode = response.topics[0].error_code
    return code


def test_topics_and_settings_survive_restarts_of_both(tmp_path: Path, own_zookeeper: OwnZooKeeper) -> None:
    with NodeProcess(tmp_path / "node", zookeeper=own_zookeeper.address) as node:
        with Wire(node.port) as wire:
            topic_id = create_topic(wire, "kept", partitions=2, config={"retention.ms": "99000"})
            produce(wire, "kept", batch_of(b"value"), partition=1)
        for both in (False, True):
            if both:
                node.stop()
            own_zookeeper.start_again()
            if both:
                node.start()
            with Wire(node.port) as wire:
                assert b"value" in fetch(wire, topic_id, 0, partition=1).records
                assert _retention(wire, "kept") == "99000"


def test_a_node_whose_session_expired_heals_without_a_restart(start_node: NodeFactory) -> None:
    """Stopped for longer than its session lasts, it registers anew, leads in a new epoch and goes on."""
    node = start_node({"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS})
    with Wire(node.port) as wire, znodes(node.zookeeper) as client:
        create_topic(wire, "healed")
        assert produce(wire, "healed", batch_of(b"before")).base_offset == 0
        registered = client.exists("/brokers/ids/1").czxid
        node.signal(signal.SIGSTOP)
        try:
            eventually(lambda: client.exists("/brokers/ids/1") is None, "the session expires")
        finally:
            node.signal(signal.SIGCONT)
        eventually(lambda: client.exists("/brokers/ids/1") is not None, "the node registers again")
        assert client.exists("/brokers/ids/1").czxid > registered
        eventually(
            lambda: produce(wire, "healed", batch_of(b"after")).error_code is ErrorCode.none,
            "the node leads again",
        )
        state = content(client, "/brokers/topics/healed/partitions/0/state")
        assert (state["leader"], state["leader_epoch"], state["controller_epoch"]) == (1, 1, 2)
        fenced = list_offset(wire, "healed", -1, current_leader_epoch=0)
        assert fenced.error_code is ErrorCode.fenced_leader_epoch
        eventually(lambda: _try_to_create(wire, "new") is not ErrorCode.not_controller, "it is controller")
        assert [b"before" in fetch(wire, "healed", 0).records, node.is_running] == [True, True]
        assert "Traceback" not in node.log_text()


def test_sessions_that_expire_again_and_again_cost_no_acknowledged_record(start_node: NodeFactory) -> None:
    node = start_node({"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS})
    acknowledged = 0
    with Wire(node.port) as wire, znodes(node.zookeeper) as client:
        create_topic(wire, "enduring")
        for round_number in range(3):
            node.signal(signal.SIGSTOP)
            try:
                eventually(lambda: client.exists("/brokers/ids/1") is None, "the session expires")
            finally:
                node.signal(signal.SIGCONT)
            while acknowledged < 5 * (round_number + 1):
                answer = produce(wire, "enduring", batch_of(b"value %d" % acknowledged))
                if answer.error_code is ErrorCode.none:
                    assert answer.base_offset == acknowledged
                    acknowledged += 1
        records = fetch(wire, "enduring", 0).records
        assert all(b"value %d" % number in records for number in range(acknowledged))


def test_a_node_heals_from_a_disk_error_on_its_way_back(start_node: NodeFactory) -> None:
    """The file that it notes its session in cannot be written at first."""
    node = start_node({"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS})
    obstacle = node.log_dir / "zookeeper-session"
    with Wire(node.port) as wire, znodes(node.zookeeper) as client:
        create_topic(wire, "healed")
        node.signal(signal.SIGSTOP)
        try:
            eventually(lambda: client.exists("/brokers/ids/1") is None, "the session expires")
            obstacle.unlink()
            obstacle.mkdir()
        finally:
            node.signal(signal.SIGCONT)
        eventually(lambda: "cannot rejoin" in node.log_text(), "the node fails to come back")
        obstacle.rmdir()
        eventually(
            lambda: produce(wire, "healed", batch_of(b"value")).error_code is ErrorCode.none,
            "the node leads again",
        )


def test_a_node_stops_cleanly_while_zookeeper_is_away(tmp_path: Path, own_zookeeper: OwnZooKeeper) -> None:
    node = NodeProcess(tmp_path / "node", zookeeper=own_zookeeper.address)
    with node:
        with Wire(node.port) as wire:
            create_topic(wire, "kept")
            produce(wire, "kept", batch_of(b"value"))
        own_zookeeper.stop()
        eventually(lambda: "suspended" in node.log_text(), "the node notices")
        began = time.monotonic()
        assert node.stop() == 0
        assert time.monotonic() - began < 20
        assert (node.log_dir / ".kafka_cleanshutdown").exists()


# ---- starts that are refused


def refused_start(folder: Path, zookeeper: str | None, settings: dict[str, str]) -> str:
    """Starts a node that must not start; returns what it says of it, which is one sentence."""
    command = [sys.executable, "-m", "kbus", "broker", "start"]
    chosen = {"broker.id": "1", "listeners": "PLAINTEXT://127.0.0.1:0", "log.dirs": str(folder / "data")}
    if zookeeper is not None:
        chosen["zookeeper.connect"] = zookeeper
    for name, value in {**chosen, **settings}.items():
        command += ["--set", f"{name}={value}"]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "KBUS_HOME": str(folder / "home")},
        check=False,
    )
    assert finished.returncode == 1, finished.stderr
    assert finished.stdout == ""
    assert "Traceback" not in finished.stderr
    said = [line for line in finished.stderr.splitlines() if line and " INFO " not in line]
    assert len(said) == 1, finished.stderr
    return said[0]


def test_a_second_node_with_the_same_id_does_not_start(start_node: NodeFactory, tmp_path: Path) -> None:
    node = start_node()
    said = refused_start(
        tmp_path / "second", node.zookeeper, {"zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS}
    )
    assert "broker with id 1" in said
    assert "broker.id" in said
    with Wire(node.port) as wire:
        create_topic(wire, "undisturbed")
        assert produce(wire, "undisturbed", batch_of(b"value")).error_code is ErrorCode.none


def test_a_second_node_with_the_same_data_does_not_start(start_node: NodeFactory, tmp_path: Path) -> None:
    node = start_node()
    said = refused_start(
        tmp_path / "second", node.zookeeper, {"broker.id": "2", "log.dirs": str(node.log_dir)}
    )
    assert str(node.log_dir) in said
    with Wire(node.port) as wire:
        create_topic(wire, "undisturbed")
        assert produce(wire, "undisturbed", batch_of(b"value")).error_code is ErrorCode.none


def test_a_taken_port_is_named(zookeeper: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = refused_start(tmp_path, zookeeper, {"listeners": f"PLAINTEXT://127.0.0.1:{port}"})
    assert f"127.0.0.1:{port}" in said
    assert "listeners" in said


def test_data_of_another_cluster_is_not_touched(
    start_node: NodeFactory, tmp_path: Path, zookeeper: str
) -> None:
    node = start_node()
    node.stop()
    before = (node.log_dir / "meta.properties").read_text()
    said = refused_start(tmp_path, f"{zookeeper}-other", {"log.dirs": str(node.log_dir)})
    assert "belongs to cluster" in said
    assert (node.log_dir / "meta.properties").read_text() == before
    assert (node.log_dir / ".kafka_cleanshutdown").exists(), "it is not even opened"


def test_data_of_another_broker_is_not_touched(start_node: NodeFactory, tmp_path: Path) -> None:
    node = start_node()
    node.stop()
    said = refused_start(tmp_path, node.zookeeper, {"broker.id": "2", "log.dirs": str(node.log_dir)})
    assert "belongs to broker 1" in said


def test_a_zookeeper_that_does_not_answer_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        said = refused_start(
            tmp_path,
            address,
            {"zookeeper.connection.timeout.ms": "500", "zookeeper.session.timeout.ms": SESSION_TIMEOUT_MS},
        )
    assert address in said


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("log.retention.hour", "1", "log.retention.hours"),
        ("num.partitions", "many", "num.partitions"),
        ("listeners", "nonsense", "listeners"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, name: str, value: str, expected: str) -> None:
    assert expected in refused_start(tmp_path, "127.0.0.1:1", {name: value})
