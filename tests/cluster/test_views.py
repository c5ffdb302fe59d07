"""One picture out of what several brokers say, and the timeline of its changes."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from kbus.cli.isr_events import changes
from kbus.client.metadata import BrokerAddress, ClusterView, PartitionView, merged
from kbus.client.watcher import NoBrokerAnswersError, Watcher
from kbus.types import BrokerId, LeaderEpoch, TopicPartition
from tests.nodes import NodeProcess

from .commands import Kbus

P = TopicPartition("t", 0)
ONE, TWO, THREE = BrokerId(1), BrokerId(2), BrokerId(3)


def says(
    leader: int | None,
    epoch: int,
    isr: tuple[int, ...],
    *,
    controller: int = 1,
    brokers: tuple[int, ...] = (1, 2),
) -> ClusterView:
    return ClusterView(
        brokers={BrokerId(b): BrokerAddress(id=BrokerId(b), host="h", port=b) for b in brokers},
        controller=BrokerId(controller),
        partitions={
            P: PartitionView(
                leader=None if leader is None else BrokerId(leader),
                leader_epoch=LeaderEpoch(epoch),
                replicas=(ONE, TWO, THREE),
                isr=tuple(map(BrokerId, isr)),
            )
        },
    )


class TestOnePicture:
    def test_the_highest_leader_epoch_counts_whoever_knows_it(self) -> None:
        view = merged({ONE: says(1, 4, (1, 2, 3)), TWO: says(1, 4, (1, 2, 3)), THREE: says(2, 5, (2, 3))})
        assert view.partitions[P].leader == TWO
        assert view.partitions[P].isr == (TWO, THREE)

    def test_among_equals_the_leader_knows_best(self) -> None:
        view = merged({ONE: says(2, 4, (1, 2)), TWO: says(2, 4, (2,)), THREE: says(2, 4, (1, 2))})
        assert view.partitions[P].isr == (TWO,)
        assert view.under_replicated == [P]

    def test_who_is_there_is_what_the_controller_says(self) -> None:
        view = merged({ONE: says(1, 1, (1,), brokers=(1,)), TWO: says(1, 1, (1,), brokers=(1, 2, 3))})
        assert list(view.brokers) == [ONE]

    def test_who_calls_itself_controller_is_believed(self) -> None:
        view = merged(
            {ONE: says(1, 1, (1,), controller=3), TWO: says(1, 1, (1,), controller=2), THREE: says(1, 1, ())}
        )
        assert view.controller == TWO

    def test_nobody_says_nothing(self) -> None:
        assert merged({}) == ClusterView()


class TestChanges:
    def test_of_leader_epoch_and_isr_are_told_with_what_was_before(self) -> None:
        (event,) = changes(says(1, 4, (1, 2, 3)), says(2, 5, (2, 3)))
        assert (event["old_leader"], event["leader"]) == (1, 2)
        assert (event["old_leader_epoch"], event["leader_epoch"]) == (4, 5)
        assert (event["old_isr"], event["isr"]) == ([1, 2, 3], [2, 3])

    def test_are_none_where_nothing_changed(self) -> None:
        assert changes(says(1, 4, (1, 2)), says(1, 4, (1, 2))) == []

    def test_never_go_back_to_an_older_epoch(self) -> None:
        assert changes(says(2, 5, (2, 3)), says(1, 4, (1, 2, 3))) == []

    def test_of_brokers_and_controller_are_told(self) -> None:
        events = changes(says(1, 4, (1,), brokers=(1, 2)), says(1, 4, (1,), brokers=(2, 3), controller=2))
        assert [(e["event"], e.get("broker")) for e in events] == [
            ("joined", 3),
            ("left", 1),
            ("controller", None),
        ]


class TestTheWatcher:
    def test_says_which_addresses_do_not_answer_and_why(self) -> None:
        async def scenario() -> None:
            async with Watcher([("127.0.0.1", 1)], every_s=0.1) as watcher:
                await watcher.all_heard()

        with pytest.raises(NoBrokerAnswersError, match=r"127\.0\.0\.1:1 does not answer"):
            asyncio.run(scenario())

    def test_finds_a_broker_by_another_name(self, node: NodeProcess) -> None:
        async def scenario() -> ClusterView:
            async with Watcher([("localhost", node.port)], every_s=0.1) as watcher:
                view = await watcher.all_heard()
                assert watcher.answering == {ONE}
                return view

        assert asyncio.run(scenario()).controller == ONE

    def test_does_not_wait_for_a_broker_that_says_nothing(self, node: NodeProcess) -> None:
        """One that was paused accepts connections, as its kernel does that, and never answers."""

        async def scenario() -> None:
            with socket.create_server(("127.0.0.1", 0)) as silent:
                addresses = [silent.getsockname(), ("127.0.0.1", node.port)]
                async with Watcher(addresses, every_s=0.05) as watcher:
                    await watcher.wait_for(lambda view: ONE in view.brokers, timeout_s=0.8)

        asyncio.run(scenario())


class TestIsr:
    def test_show_tells_how_far_each_replica_is(self, started: Kbus) -> None:
        started.ok("topic", "create", "demo", "--partitions", "2")
        found = started.json("isr", "show", "demo")
        assert found["controller"] == 1
        assert found["partitions"][1] == {
            "topic": "demo",
            "partition": 1,
            "leader": 1,
            "leader_epoch": 0,
            "isr": [1],
            "high_watermark": 0,
            "replicas": [{"broker": 1, "log_end": 0, "lag": 0, "in_sync": True, "leader": True}],
            "state": "in sync",
        }
        table = started.ok("isr", "show").splitlines()
        assert table[1].split() == ["demo-0", "1", "0", "1", "0", "1:0"]

    def test_show_says_what_is_not_there(self, started: Kbus) -> None:
        assert "Topic 'nope' does not exist" in started("isr", "show", "nope").err
        assert started.topics() == [], "to look is not to create"
        assert "Cannot reach the cluster" in started("isr", "show", "-b", "127.0.0.1:1").err

    def test_watch_tells_changes_as_they_happen(self, started: Kbus, home: Path) -> None:
        started.ok("topic", "create", "demo", "--partitions", "1")
        code = "from tests.cluster.commands import _app; _app()"
        with subprocess.Popen(
            [sys.executable, "-c", code, "isr", "watch", "-o", "json"],
            stdout=subprocess.PIPE,
            env={**os.environ, "KBUS_HOME": str(home)},
            cwd=Path(__file__).parents[2],
        ) as watching:
            watchdog = threading.Timer(60, watching.kill)
            watchdog.start()
            try:
                assert watching.stdout is not None
                assert json.loads(watching.stdout.readline())["event"] == "watching"
                started.ok("topic", "create", "first")
                seen = [json.loads(watching.stdout.readline())]
                started.ok("broker", "restart", "1")
                while seen[-1].get("old_leader_epoch") != 0 or seen[-1]["topic"] != "demo":
                    seen.append(json.loads(watching.stdout.readline()))
                watching.send_signal(signal.SIGINT)
                assert watching.wait() == 130
            finally:
                watchdog.cancel()
                watching.kill()
        assert (seen[0]["event"], seen[0]["topic"]) == ("created", "first")
        assert seen[-1]["leader_epoch"] == 1
        assert all(event["time_ms"] > 0 for event in seen)
