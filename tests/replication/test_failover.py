"""Three brokers, three replicas: what was acknowledged by all in sync survives whatever dies."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException

from tests.node.kafka import produce, read_all
from tests.replication.cluster import Acknowledged, Cluster, eventually

REFUSE_AT_ONCE: dict[str, Any] = {"acks": "all", "message.send.max.retries": 0, "log_level": 0}
LEADER_ONLY: dict[str, Any] = {"acks": 1, "log_level": 0}


@pytest.fixture
def cluster(tmp_path: Path, zookeeper: str) -> Iterator[Cluster]:
    with Cluster(tmp_path, zookeeper) as running:
        yield running


def check_nothing_lost(cluster: Cluster, topic: str, sent: Acknowledged) -> None:
    found = {(r.partition, r.offset): r.value for r in read_all(cluster.bootstrap, topic)}
    lost = {position: value for position, value in sent.records.items() if found.get(position) != value}
    assert not lost
    assert len(found) == len(set(found.values())), "no record is there twice"


def test_acknowledged_records_survive_the_kill_of_every_leader_in_turn(cluster: Cluster) -> None:
    cluster.create_topic("turn", partitions=3, min_insync_replicas="2")
    sent = Acknowledged(cluster.bootstrap, "turn")
    sent.send(300)
    sent.flush()
    for number, node in cluster.nodes.items():
        sent.send(200)
        node.kill()
        sent.send(200)
        sent.flush()
        assert cluster.leader("turn", number - 1) != number
        node.start()
        cluster.wait_in_sync("turn", 3)
    assert sent.errors == []
    assert len(sent.records) == 1500
    check_nothing_lost(cluster, "turn", sent)
    for partition in range(3):
        first, *others = cluster.log_bytes("turn", partition)
        assert first
        assert all(other == first for other in others), "replicas are the same to the byte"


def test_a_clean_stop_of_the_leader_fails_no_request(cluster: Cluster) -> None:
    cluster.create_topic("stopped", min_insync_replicas="2")
    sent = Acknowledged(cluster.bootstrap, "stopped")
    for _ in range(2):
        leader = cluster.leader("stopped")
        sent.send(200)
        assert cluster.nodes[leader].stop() == 0
        sent.send(200)
        sent.flush()
        assert cluster.leader("stopped") != leader
        cluster.nodes[leader].start()
        cluster.wait_in_sync("stopped", 3)
    assert sent.errors == []
    check_nothing_lost(cluster, "stopped", sent)


def test_below_min_insync_replicas_acks_all_is_refused_and_acks_one_goes_on(cluster: Cluster) -> None:
    cluster.create_topic("few", min_insync_replicas="2")
    leader = cluster.leader("few")
    for number, node in cluster.nodes.items():
        if number != leader:
            node.kill()
    eventually(lambda: cluster.in_sync("few") == [1], "the leader is alone in sync")
    with pytest.raises((AssertionError, KafkaException)) as refused:
        produce(cluster.bootstrap, "few", [b"no"], **REFUSE_AT_ONCE)
    assert "NOT_ENOUGH_REPLICAS" in str(refused.value)
    produce(cluster.bootstrap, "few", [b"yes"], **LEADER_ONLY)


def test_all_acknowledged_records_are_there_after_the_whole_cluster_was_killed(cluster: Cluster) -> None:
    cluster.create_topic("dark", partitions=3, min_insync_replicas="2")
    sent = Acknowledged(cluster.bootstrap, "dark")
    sent.send(500)
    sent.flush()
    for node in cluster.nodes.values():
        node.kill()
    for node in cluster.nodes.values():
        node.start()
    cluster.wait_in_sync("dark", 3)
    sent.send(100)
    sent.flush()
    assert len(sent.records) == 600
    check_nothing_lost(cluster, "dark", sent)


def test_any_broker_creates_topics_and_every_broker_knows_them(cluster: Cluster) -> None:
    for number, node in cluster.nodes.items():
        produce(node.bootstrap, f"made-by-{number}", [b"created on first use"])
    for node in cluster.nodes.values():
        for number in cluster.nodes:
            assert [r.value for r in read_all(node.bootstrap, f"made-by-{number}")] == [
                b"created on first use"
            ]
