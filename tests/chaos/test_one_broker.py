"""Faults on a cluster of one broker: what it survives, and what it cannot."""

import os
import signal

import pytest

from tests.cluster.commands import Kbus, is_alive, state_of, wait_until


@pytest.fixture
def demo(started: Kbus) -> Kbus:
    started.ok("topic", "create", "demo", "--partitions", "2")
    return started


def test_a_restart_is_survived_and_measured(demo: Kbus) -> None:
    pid = demo.broker(1)["pid"]
    found = demo.json("chaos", "restart-broker", "1")
    assert found["recovered"]
    assert found["pid"] not in (pid, None)
    assert [part["after"]["leader"] for part in found["partitions"]] == [1, 1]
    for part in found["partitions"]:
        assert part["after"]["leader_epoch"] > part["before"]["leader_epoch"]
        assert 0 < part["leader_ms"] <= found["leaders_ms"]
    assert found["acknowledged_ms"] > 0
    # There is one broker: while it was down nothing was acknowledged.
    assert found["write_pause_ms"] > 5
    assert found["back_in_sync_ms"] >= found["leaders_ms"]
    assert found["controller"]["after"]["epoch"] > found["controller"]["before"]["epoch"]


def test_an_expired_session_is_survived_and_the_broker_runs_on(demo: Kbus) -> None:
    pid = demo.broker(1)["pid"]
    found = demo.json("chaos", "expire-session", "1", "--topic", "demo:1")
    assert found["recovered"]
    assert found["probed"] == {"topic": "demo", "partition": 1}
    assert demo.broker(1)["pid"] == pid
    assert found["controller"]["after"]["epoch"] > found["controller"]["before"]["epoch"]
    assert all(p["after"]["leader_epoch"] > p["before"]["leader_epoch"] for p in found["partitions"])


def test_the_loss_of_the_only_replica_is_told_as_such_and_fails(demo: Kbus) -> None:
    pid = demo.broker(1)["pid"]
    result = demo("chaos", "kill-leader", "demo:1", "--timeout", "0.5")
    assert result.exit_code == 1
    assert f"Killed broker 1 (pid {pid}), leader of 2 partitions." in result.out
    assert "not acknowledged" in result.out
    assert "did not recover within 0.5 s: demo-0, demo-1 got no new leader, as no other replica" in result.err
    assert not is_alive(pid)
    assert "No broker of cluster local runs" in demo("chaos", "kill-leader", "demo").err
    demo.ok("broker", "start", "1")
    assert demo.json("cluster", "status")["brokers"][0]["deaths"] == 1


def test_a_controller_without_successor_is_told_as_such(demo: Kbus) -> None:
    result = demo("chaos", "kill-controller", "--no-write", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "no new controller was elected" in result.err
    assert "not tried" in result.out


def test_a_paused_broker_is_a_zombie_until_it_is_resumed(demo: Kbus) -> None:
    pid = demo.broker(1)["pid"]
    result = demo("chaos", "pause-broker", "1", "--timeout", "0.5")
    assert result.exit_code == 1
    assert "kbus chaos resume-broker 1" in result.out
    assert state_of(pid) == "T"
    assert demo("cluster", "status").exit_code == 1
    found = demo.json("chaos", "resume-broker", "1", "--topic", "demo")
    assert found["recovered"]
    assert found["acknowledged_ms"] is not None
    wait_until(lambda: demo("cluster", "status").exit_code == 0, "the cluster is well")


def test_nothing_is_done_to_a_cluster_whose_target_is_unknown(demo: Kbus) -> None:
    pid = demo.broker(1)["pid"]
    assert "There is no partition 9 of topic 'demo'" in demo("chaos", "kill-leader", "demo:9").err
    assert "There is no partition 0 of topic 'nope'" in demo("chaos", "kill-leader", "nope").err
    assert demo("chaos", "kill-leader", "demo:x").exit_code == 2
    assert "has no broker 5" in demo("chaos", "kill-broker", "5", "--no-write").err
    assert demo.broker(1)["pid"] == pid


def test_a_cluster_that_does_not_run_is_said(demo: Kbus) -> None:
    demo.ok("cluster", "stop")
    assert "Cluster local does not run" in demo("chaos", "kill-broker", "1").err


def test_a_death_from_outside_is_not_taken_for_one_on_request(demo: Kbus) -> None:
    os.kill(demo.broker(1)["pid"], signal.SIGKILL)
    wait_until(lambda: demo.json("broker", "list")[0]["state"] == "died", "the death is noticed")
