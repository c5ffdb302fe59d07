"""A cluster of one broker, with real processes. What needs several brokers is in test_several_brokers.py."""

import signal
import socket
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from kbus.cluster.control import Control
from kbus.cluster.folder import ClusterFolder
from kbus.cluster.memory import descendants
from kbus.cluster.spec import Wishes, planned

from .commands import Kbus, free_port, is_alive, kill, state_of, wait_until

OWN_ZOOKEEPER = ("cluster", "start", "--brokers", "1", "--base-port", str(free_port()))


def status_of(kbus: Kbus) -> Any:
    """Whatever the exit code."""
    return Control(ClusterFolder.chosen(None)).call("status")


def produce(servers: str, topic: str, count: int) -> None:
    producer = Producer({"bootstrap.servers": servers, "log_level": 0})
    for number in range(count):
        producer.produce(topic, value=b"%d" % number)
    assert producer.flush(30) == 0


class TestStart:
    def test_returns_when_the_broker_serves_and_says_where(self, started: Kbus) -> None:
        found = started.json("cluster", "start")
        with socket.create_connection(("127.0.0.1", int(found["bootstrap_servers"].rpartition(":")[2]))):
            pass
        again = started("cluster", "start")
        assert found["bootstrap_servers"] in again.out
        assert "kbus topic create" in again.out
        assert "was running already" in again.out

    def test_is_found_by_other_commands(self, started: Kbus) -> None:
        started.ok("topic", "create", "demo", "--partitions", "2")
        assert started.topics() == ["demo"]

    def test_brings_a_zookeeper_of_its_own(self, kbus: Kbus) -> None:
        found = kbus.json(
            "cluster", "start", "--brokers", "1", "--name", "own", "--base-port", str(free_port())
        )
        assert found["zookeeper"]["embedded"]
        assert is_alive(found["zookeeper"]["pid"])
        kbus.ok("cluster", "stop")
        assert not is_alive(found["zookeeper"]["pid"])

    def test_again_starts_what_is_down_at_its_port_and_with_its_data(self, started: Kbus) -> None:
        before = started.broker(1)
        servers = f"127.0.0.1:{before['port']}"
        started.ok("topic", "create", "demo", "--partitions", "1")
        produce(servers, "demo", 100)
        kill(before["pid"], signal.SIGKILL)
        wait_until(lambda: status_of(started)["brokers"][0]["state"] == "died", "the death is noticed")
        found = started.json("cluster", "start")
        assert found["started"] == [1]
        assert found["brokers"][0]["port"] == before["port"]
        assert found["brokers"][0]["deaths"] == 1
        (partition,) = started.json("isr", "show", "demo")["partitions"]
        assert partition["high_watermark"] == 100

    def test_after_a_stop_goes_on_with_ports_and_data(self, started: Kbus) -> None:
        before = started.broker(1)
        started.ok("topic", "create", "demo")
        started.ok("cluster", "stop")
        assert not is_alive(before["pid"])
        after = started.json("cluster", "start")["brokers"][0]
        assert (after["port"], after["pid"] == before["pid"]) == (before["port"], False)
        assert started.topics() == ["demo"]

    def test_shows_the_own_error_of_a_broker_that_does_not_start(self, started: Kbus) -> None:
        data = Path(started.broker(1)["data"])
        started.ok("cluster", "stop")
        meta = data / "meta.properties"
        meta.write_text(meta.read_text().replace("broker.id=1", "broker.id=7"))
        result = started("cluster", "start")
        assert result.exit_code == 1
        assert "Broker 1 does not start: The data in" in result.err
        assert "belongs to broker 7" in result.err
        assert started("cluster", "status").exit_code == 1, "nothing runs, so nobody supervises"

    def test_shows_the_end_of_the_log_of_a_broker_that_breaks_down(
        self, kbus: Kbus, zookeeper: str, home: Path
    ) -> None:
        # A folder in the place of a file that the broker writes: nothing that it is prepared to refuse.
        (home / "local" / "broker-1" / "data" / "zookeeper-session").mkdir(parents=True)
        settings = {"zookeeper.connect": zookeeper}
        (home / "local" / "spec.json").write_text(
            planned("local", None, Wishes(brokers=1, base_port=free_port(), settings=settings)).to_json()
        )
        result = kbus("cluster", "start")
        assert result.exit_code == 1
        assert "Broker 1 does not start (exit code 1): IsADirectoryError" in result.err

    def test_reports_a_taken_port_with_who_holds_it(self, kbus: Kbus, zookeeper: str) -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            result = kbus(
                *("cluster", "start", "--brokers", "1", "--base-port", str(port)),
                *("--set", f"zookeeper.connect={zookeeper}"),
            )
        assert result.exit_code == 1
        assert f"cannot listen on 127.0.0.1:{port}, which is taken by pid" in result.err

    def test_refuses_what_no_broker_would_take_before_anything_runs(self, kbus: Kbus, home: Path) -> None:
        result = kbus("cluster", "start", "--set", "num.partition=3")
        assert result.exit_code == 1
        assert "did you mean num.partitions?" in result.err
        assert not (home / "local" / "spec.json").exists()
        assert "There is no local cluster" in kbus("cluster", "status").err

    def test_never_moves_into_a_folder_with_something_else(self, kbus: Kbus, home: Path) -> None:
        (home / "mine").mkdir(parents=True)
        (home / "mine" / "thesis.txt").write_text("precious")
        result = kbus("cluster", "start", "--name", "mine")
        assert result.exit_code == 1
        assert "holds something else" in result.err
        assert kbus("cluster", "destroy", "--name", "mine", "--yes").exit_code == 1
        assert (home / "mine" / "thesis.txt").exists()

    def test_gives_a_second_cluster_other_ports_even_if_the_first_is_down(
        self, kbus: Kbus, zookeeper: str
    ) -> None:
        def start(name: str) -> int:
            options = ("--name", name, "--brokers", "1", "--set", f"zookeeper.connect={zookeeper}/{name}")
            port: int = kbus.json("cluster", "start", *options)["brokers"][0]["port"]
            return port

        first = start("one")
        kbus.ok("cluster", "stop")
        assert start("two") != first
        listed = {row["name"]: row for row in kbus.json("cluster", "list")}
        assert {name: row["state"] for name, row in listed.items()} == {"one": "stopped", "two": "running"}
        assert [name for name, row in listed.items() if row["current"]] == ["two"]

    def test_takes_a_file_and_lets_options_win(self, kbus: Kbus, zookeeper: str, tmp_path: Path) -> None:
        file = tmp_path / "cluster.toml"
        file.write_text(
            f'name = "filed"\nbrokers = 3\nracks = ["r1"]\n[settings]\nnum.partitions = 4\n'
            f'zookeeper.connect = "{zookeeper}"\n'
        )
        found = kbus.json(
            "cluster", "start", "--config", str(file), "--brokers", "1", "--base-port", str(free_port())
        )
        assert (found["name"], len(found["brokers"])) == ("filed", 1)
        assert kbus.broker(1)["rack"] == "r1"
        kbus.ok("topic", "create", "four")
        assert len(kbus.json("isr", "show", "four")["partitions"]) == 4


class TestProcesses:
    def test_end_with_the_supervisor_however_it_ends(self, kbus: Kbus) -> None:
        found = kbus.json(*OWN_ZOOKEEPER)
        processes = descendants(found["pid"])
        assert {found["pid"], found["brokers"][0]["pid"], found["zookeeper"]["pid"]} <= set(processes)
        kbus.ok("topic", "create", "demo")
        kill(found["pid"], signal.SIGKILL)
        wait_until(lambda: not any(map(is_alive, processes)), "all processes are gone")
        assert "does not run" in kbus("cluster", "status").err
        kbus.ok("cluster", "start")
        assert kbus.topics() == ["demo"]

    def test_are_all_gone_after_a_stop(self, kbus: Kbus) -> None:
        processes = descendants(kbus.json(*OWN_ZOOKEEPER)["pid"])
        kbus.ok("cluster", "stop")
        wait_until(lambda: not any(map(is_alive, processes)), "all processes are gone")
        assert kbus("cluster", "stop").exit_code == 0, "to stop what does not run is no error"

    def test_a_stopped_broker_ends_in_order(self, started: Kbus) -> None:
        data = Path(started.broker(1)["data"])
        assert "has stopped" in started.ok("broker", "stop", "1")
        assert (data / ".kafka_cleanshutdown").exists()
        assert status_of(started)["brokers"][0]["state"] == "stopped"
        assert "did not run" in started.ok("broker", "stop", "1")
        assert "is ready" in started.ok("broker", "start", "1")
        assert "was running already" in started.ok("broker", "start", "1")

    def test_a_dead_zookeeper_is_started_again_at_its_port(self, kbus: Kbus) -> None:
        before = kbus.json(*OWN_ZOOKEEPER)["zookeeper"]
        kill(before["pid"], signal.SIGKILL)

        def new_pid() -> bool:
            return status_of(kbus)["zookeeper"]["pid"] not in (None, before["pid"])

        wait_until(new_pid, "another ZooKeeper is there")
        assert status_of(kbus)["zookeeper"]["address"] == before["address"]
        wait_until(lambda: kbus("topic", "create", "demo").exit_code == 0, "topics can be created")

    def test_a_broker_that_died_stays_down_unless_the_file_asks_for_a_restart(
        self, started: Kbus, tmp_path: Path
    ) -> None:
        file = tmp_path / "cluster.toml"
        file.write_text("restart = true\n")
        pid = started.broker(1)["pid"]
        started.ok("cluster", "start", "--config", str(file))
        kill(pid, signal.SIGKILL)

        def is_back() -> bool:
            broker = status_of(started)["brokers"][0]
            return bool(broker["state"] == "running" and broker["pid"] != pid)

        wait_until(is_back, "the broker is back")

    def test_a_paused_broker_can_be_resumed_and_stopped(self, started: Kbus) -> None:
        control = Control(ClusterFolder.chosen(None))
        pid = control.call("pause-broker", broker=1)["pid"]
        wait_until(lambda: state_of(pid) == "T", "the process has stopped")
        assert "is paused" in started("broker", "start", "1").err
        control.call("resume-broker", broker=1)
        assert "is running, not paused" in started("chaos", "resume-broker", "1").err
        control.call("pause-broker", broker=1)
        data = Path(started.broker(1)["data"])
        started.ok("broker", "stop", "1")
        assert not is_alive(pid)
        assert (data / ".kafka_cleanshutdown").exists(), "it had to be killed"

    def test_run_on_when_the_one_who_asked_goes_away(self, started: Kbus) -> None:
        pid = started.broker(1)["pid"]
        folder = ClusterFolder.chosen(None)
        with folder.socket_path() as path, socket.socket(socket.AF_UNIX) as connection:
            connection.connect(path)
            connection.sendall(b'{"command": "restart-broker", "broker": 1, "settings": {}}\n')

        def is_other() -> bool:
            broker = status_of(started)["brokers"][0]
            return bool(broker["state"] == "running" and broker["pid"] != pid)

        wait_until(is_other, "the restart is done")


class TestMembers:
    def test_take_new_settings_with_a_restart_and_keep_them(self, started: Kbus) -> None:
        started.ok("broker", "restart", "1", "--set", "num.partitions=5")
        started.ok("broker", "restart", "1")
        assert started.broker(1)["settings"]["num.partitions"] == "5"
        started.ok("topic", "create", "five")
        assert len(started.json("isr", "show", "five")["partitions"]) == 5

    def test_refuse_settings_that_are_wrong_and_go_on(self, started: Kbus) -> None:
        pid = started.broker(1)["pid"]
        result = started("broker", "restart", "1", "--set", "num.partitions=none")
        assert result.exit_code == 1
        assert "num.partitions" in result.err
        assert started.broker(1)["pid"] == pid

    def test_that_are_not_there_are_said(self, started: Kbus) -> None:
        assert "has no broker 7; it has 1." in started("broker", "stop", "7").err
        assert "has no broker 7; it has 1." in started("broker", "describe", "7").err

    def test_that_are_down_make_the_status_fail(self, started: Kbus) -> None:
        found = started.json("cluster", "status")
        assert found["healthy"]
        assert found["controller"] == 1
        assert found["brokers"][0]["memory_bytes"] > 1024 * 1024
        assert found["partitions"] == {"total": 0, "under_replicated": [], "offline": []}
        started.ok("broker", "stop", "1")
        result = started("cluster", "status")
        assert result.exit_code == 1
        assert "no broker answers" in result.out
        assert [row["state"] for row in started.json("broker", "list")] == ["stopped"]

    def test_cannot_move_while_they_run(self, started: Kbus) -> None:
        result = started("cluster", "start", "--base-port", "40000")
        assert "stop the cluster first" in result.err
        assert started("cluster", "status").exit_code == 0


class TestTheEnd:
    def test_destroy_asks_first_and_does_nothing_if_there_is_nobody_to_ask(
        self, started: Kbus, home: Path
    ) -> None:
        result = started("cluster", "destroy")
        assert result.exit_code == 1
        assert "Nothing was deleted" in result.err
        assert started("cluster", "status").exit_code == 0

    def test_destroy_leaves_nothing(self, started: Kbus, home: Path) -> None:
        pid = started.broker(1)["pid"]
        started.ok("cluster", "destroy", "--yes")
        assert not is_alive(pid)
        assert list(home.iterdir()) == []
        assert "There is no cluster" in started("cluster", "list").err
        assert "There is no local cluster local" in started("cluster", "stop").err


class TestLogs:
    def test_are_those_of_the_brokers_or_of_the_one_named(self, started: Kbus) -> None:
        assert "broker 1 of cluster" in started.ok("cluster", "logs")
        assert "supervising cluster local" in started.ok("cluster", "logs", "supervisor")
        assert len(started.ok("cluster", "logs", "1", "-n", "2").splitlines()) == 2
        result = started("cluster", "logs", "9")
        assert result.exit_code == 1
        assert "it has those of 1, zookeeper, supervisor" in result.err

    def test_of_several_come_in_the_order_of_time(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        from kbus.cli.cluster_logs import print_last

        files = {name: tmp_path / name for name in ("a", "b")}
        files["a"].write_text("2026-01-01 00:00:01,000 one\n  more\n2026-01-01 00:00:03,000 three\n")
        files["b"].write_text("2026-01-01 00:00:02,000 two\n")
        print_last(files, 3)
        assert [line[27:] for line in capsys.readouterr().out.splitlines()] == ["", " two", " three"]
