"""Three brokers: what a launcher, its commands and its faults are for. Belongs into tests/chaos/."""

import time

import pytest
from confluent_kafka import Producer

from tests.cluster.commands import Kbus, free_port, wait_until

RECORDS = 500


@pytest.fixture
def three(kbus: Kbus, zookeeper: str) -> Kbus:
    """Three brokers, and a topic of three partitions on all of them, each led by another one."""
    kbus.ok(
        *("cluster", "start", "--racks", "a,b,c", "--base-port", str(free_port(4))),
        *("--set", f"zookeeper.connect={zookeeper}", "--set", "zookeeper.session.timeout.ms=2000"),
        *("--set", "replica.lag.time.max.ms=2000"),
    )
    kbus.ok("topic", "create", "demo", "--partitions", "3")
    wait_until(lambda: kbus("cluster", "status").exit_code == 0, "all replicas are in sync")
    return kbus


def produce(kbus: Kbus) -> None:
    servers = kbus.json("cluster", "status")["bootstrap_servers"]
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "log_level": 0})
    for number in range(RECORDS):
        producer.produce("demo", value=b"%d" % number, partition=number % 3)
    assert producer.flush(30) == 0


def leader_of(kbus: Kbus, partition: int = 0) -> int:
    leader: int = kbus.json("isr", "show", "demo")["partitions"][partition]["leader"]
    return leader


def all_the_same(kbus: Kbus) -> None:
    for partition in range(3):
        found = kbus.json("segment", "diff", f"demo:{partition}")
        assert found["same"]
        assert len(found["replicas"]) == 3


def test_racks_leaders_and_replicas_are_spread(three: Kbus) -> None:
    brokers = three.json("broker", "list")
    assert [broker["rack"] for broker in brokers] == ["a", "b", "c"]
    assert [broker["leader_of"] for broker in brokers] == [1, 1, 1]
    assert [broker["replica_of"] for broker in brokers] == [3, 3, 3]


def test_each_replica_tells_where_its_log_ends(three: Kbus) -> None:
    produce(three)
    parts = three.json("isr", "show", "demo")["partitions"]
    assert sum(part["high_watermark"] for part in parts) == RECORDS
    for part in parts:
        assert [replica["log_end"] for replica in part["replicas"]] == [part["high_watermark"]] * 3
        assert all(replica["in_sync"] and replica["lag"] == 0 for replica in part["replicas"])
    all_the_same(three)


def test_a_killed_leader_is_replaced_and_comes_back_in_sync(three: Kbus) -> None:
    produce(three)
    old = leader_of(three)
    found = three.json("chaos", "kill-leader", "demo:0")
    assert (found["recovered"], found["broker"]) == (True, old)
    (part,) = [p for p in found["partitions"] if p["partition"] == 0]
    assert part["after"]["leader"] not in (old, None)
    assert part["after"]["leader_epoch"] > part["before"]["leader_epoch"]
    assert found["leaders_ms"] > 0
    assert found["acknowledged_ms"] > 0
    assert three("cluster", "status").exit_code == 1, "it is short of a broker"
    three.ok("broker", "start", str(old))
    wait_until(lambda: three("cluster", "status").exit_code == 0, "it is in sync again")
    all_the_same(three)


def test_a_killed_controller_has_a_successor(three: Kbus) -> None:
    found = three.json("chaos", "kill-controller")
    before, after = found["controller"]["before"], found["controller"]["after"]
    assert found["broker"] == before["broker"] != after["broker"]
    assert after["epoch"] > before["epoch"]
    assert found["controller"]["elected_ms"] > 0


def test_a_zombie_loses_its_leaderships_and_rejoins_when_it_wakes_up(three: Kbus) -> None:
    old = leader_of(three)
    found = three.json("chaos", "pause-broker", str(old), "--topic", "demo:0")
    assert found["recovered"]
    assert leader_of(three) != old
    found = three.json("chaos", "resume-broker", str(old), "--topic", "demo:0")
    assert found["recovered"]
    wait_until(lambda: three("cluster", "status").exit_code == 0, "it is in sync again")
    all_the_same(three)


def test_an_expired_session_costs_leaderships_and_nothing_else(three: Kbus) -> None:
    old = leader_of(three)
    pid = three.broker(old)["pid"]
    found = three.json("chaos", "expire-session", str(old), "--topic", "demo:0")
    assert found["recovered"]
    assert three.broker(old)["pid"] == pid
    all_the_same(three)


def test_a_restart_pauses_writes_for_less_than_a_second(three: Kbus) -> None:
    old = leader_of(three)
    found = three.json("chaos", "restart-broker", str(old), "--topic", "demo:0")
    assert found["recovered"]
    assert found["write_pause_ms"] < 1000


def test_a_broker_that_is_added_is_one_of_them(three: Kbus) -> None:
    (added,) = three.json("broker", "add", "--rack", "d")
    assert (added["broker"], added["rack"], added["state"]) == (4, "d", "running")
    three.ok("topic", "create", "wide", "--partitions", "1", "--replication-factor", "4")
    (part,) = three.json("isr", "show", "wide")["partitions"]
    assert {replica["broker"] for replica in part["replicas"]} == {1, 2, 3, 4}


def test_a_cluster_that_was_stopped_goes_on_with_all_that_it_had(three: Kbus) -> None:
    produce(three)
    three.ok("cluster", "stop")
    all_the_same(three)
    three.ok("cluster", "start")
    wait_until(lambda: three("cluster", "status").exit_code == 0, "all replicas are in sync")
    parts = three.json("isr", "show", "demo")["partitions"]
    assert sum(part["high_watermark"] for part in parts) == RECORDS


def test_three_brokers_and_zookeeper_are_soon_there_and_small(kbus: Kbus) -> None:
    """2.5 s and 300 MB on a quiet machine; here with room for one that is not."""
    began = time.monotonic()
    kbus.ok("cluster", "start", "--base-port", str(free_port(3)))
    assert time.monotonic() - began < 10
    assert kbus.json("cluster", "status")["memory_bytes"] < 300_000_000
