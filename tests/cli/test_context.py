import json
import socket
import time
from pathlib import Path

import pytest

from kbus.cli.context import bootstrap_servers, key_values
from kbus.cli.output import CliError
from kbus.client.local_cluster import LocalCluster, current_cluster, kbus_home, write_cluster

from .running import Cli


@pytest.fixture
def cluster(tmp_path: Path) -> LocalCluster:
    cluster = LocalCluster(
        folder=tmp_path / "one",
        bootstrap_servers="localhost:19092",
        zookeeper="localhost:12181",
        log_dirs=(tmp_path / "one" / "data",),
    )
    write_cluster(cluster)
    return cluster


class TestWhichCluster:
    def test_the_option_wins_over_the_environment_and_that_over_the_local_cluster(
        self, cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert bootstrap_servers(None) == "localhost:19092"
        monkeypatch.setenv("KBUS_BOOTSTRAP_SERVERS", "env:1")
        assert bootstrap_servers(None) == "env:1"
        assert bootstrap_servers("option:1") == "option:1"

    def test_without_any_the_next_step_is_said(self) -> None:
        with pytest.raises(CliError) as error:
            bootstrap_servers(None)
        assert "kbus broker start" in str(error.value.hint)

    def test_the_cluster_started_last_is_the_current_one(self, cluster: LocalCluster, tmp_path: Path) -> None:
        assert current_cluster() == cluster
        second = LocalCluster(folder=tmp_path / "two", bootstrap_servers="b:2", zookeeper="z:2")
        write_cluster(second)
        assert current_cluster() == second

    def test_a_cluster_can_be_named_relative_to_the_home(self, cluster: LocalCluster) -> None:
        folder = kbus_home() / "by-name"
        folder.mkdir()
        (folder / "cluster.json").write_text(json.dumps({"bootstrap_servers": "n:1", "zookeeper": "z:1"}))
        (kbus_home() / "current").write_text("by-name\n")
        current = current_cluster()
        assert current is not None
        assert (current.folder, current.bootstrap_servers) == (folder, "n:1")

    def test_a_destroyed_cluster_is_no_cluster(self, cluster: LocalCluster) -> None:
        (cluster.folder / "cluster.json").unlink()
        assert current_cluster() is None

    @pytest.mark.parametrize("content", ["{", "[]", '{"zookeeper": "z:1"}'])
    def test_a_damaged_description_is_reported(self, cluster: LocalCluster, content: str) -> None:
        (cluster.folder / "cluster.json").write_text(content)
        with pytest.raises(CliError, match="is not a description of a cluster"):
            bootstrap_servers(None)


def test_pairs_may_have_empty_values_and_values_with_equals_signs() -> None:
    assert key_values(["a=", "b=c=d", " e =f"], "--config") == {"a": "", "b": "c=d", "e": "f"}


@pytest.mark.parametrize(
    "command",
    [
        ["topic", "list"],
        ["topic", "create", "t"],
        ["topic", "describe", "t"],
        ["topic", "alter", "t", "--partitions", "2"],
        ["topic", "delete", "t"],
        ["console-produce", "t"],
        ["console-consume", "t"],
    ],
)
def test_an_unreachable_cluster_is_named_at_once_with_the_next_step(cli: Cli, command: list[str]) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # bound, not listening: a connection is refused
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        started = time.monotonic()
        code, out, err = cli(*command, "--bootstrap-server", address)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert f"{address}: connection refused" in err
    assert "kbus broker start" in err
    assert time.monotonic() - started < 5


@pytest.mark.parametrize("address", ["localhost:x", ":9092", "localhost:99999", ""])
def test_what_is_no_address_is_bad_usage(cli: Cli, address: str) -> None:
    code, _, err = cli("topic", "list", "--bootstrap-server", address or ",")
    assert code == 2
    assert "is not an address" in err


def test_a_property_that_the_client_does_not_know_is_named(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        code, _, err = cli("console-produce", "t", "-b", address, "--producer-property", "buffer.memory=1")
    assert code == 1
    assert "buffer.memory" in err
    assert err.count("\n") == 1
