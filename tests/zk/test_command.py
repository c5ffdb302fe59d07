"""`kbus zookeeper`, in processes of its own, against a real server."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from typing import NamedTuple

import pytest

from kbus.client.local_cluster import LocalCluster, write_cluster
from kbus.config import ZooKeeperAddress
from kbus.zk.embedded import EmbeddedZooKeeper
from kbus.zk.session import ZooKeeperSession

KBUS = [sys.executable, "-c", "from kbus.cli.main import main; main()", "zookeeper"]
NOWHERE = "127.0.0.1:1"


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str


def kbus(*args: str) -> Result:
    done = subprocess.run([*KBUS, *args], capture_output=True, text=True, timeout=60)
    return Result(done.returncode, done.stdout, done.stderr)


@pytest.fixture(autouse=True)
def own_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("KBUS_HOME", str(tmp_path / "kbus-home"))
    monkeypatch.delenv("KBUS_ZOOKEEPER", raising=False)


@pytest.fixture
def ensemble(server: EmbeddedZooKeeper) -> str:
    """Address of a chroot with a few nodes, one of them ephemeral."""
    address = ZooKeeperAddress(server.address.servers, f"/{uuid.uuid4().hex}")

    async def fill() -> None:
        store = ZooKeeperSession(address, session_timeout_ms=10_000)
        await store.open()
        await store.create("/brokers/topics/t", b'{"version":3,"partitions":{"0":[1]}}', makepath=True)
        await store.create("/text", "grün".encode())
        await store.create("/binary", b"\xff\x00")
        await store.create("/empty")
        await store.close()

    asyncio.run(fill())
    return str(address)


def test_ls_lists_children(ensemble: str) -> None:
    result = kbus("ls", "--zookeeper", ensemble)
    assert result.exit_code == 0
    lines = result.out.splitlines()
    assert lines[0].split() == ["PATH", "VERSION", "CHILDREN", "SESSION", "CHANGED"]
    assert [line.split()[0] for line in lines[1:]] == ["/binary", "/brokers", "/empty", "/text"]


def test_ls_goes_down_when_told(ensemble: str) -> None:
    result = kbus("ls", "/brokers/", "-r", "--zookeeper", ensemble, "--output", "json")
    nodes = json.loads(result.out)
    assert [node["path"] for node in nodes] == ["/brokers/topics", "/brokers/topics/t"]
    assert nodes[0]["num_children"] == 1
    assert kbus("ls", "/empty", "--zookeeper", ensemble).err == "/empty has no children.\n"


def test_get_lays_json_out_and_tells_the_stat(ensemble: str) -> None:
    result = kbus("get", "/brokers/topics/t", "--zookeeper", ensemble)
    assert result.out.startswith('{\n  "version": 3,\n  "partitions": {\n')
    assert "\nVersion:" in result.out
    document = json.loads(kbus("get", "/brokers/topics/t", "--zookeeper", ensemble, "-o", "json").out)
    assert document["data"] == {"version": 3, "partitions": {"0": [1]}}
    assert document["stat"]["version"] == 0


@pytest.mark.parametrize(
    ("path", "encoding", "data"),
    [("/text", "text", "grün"), ("/binary", "base64", "/wA="), ("/empty", "text", "")],
)
def test_get_shows_what_is_no_json(ensemble: str, path: str, encoding: str, data: str) -> None:
    document = json.loads(kbus("get", path, "--zookeeper", ensemble, "--output", "json").out)
    assert (document["encoding"], document["data"]) == (encoding, data)
    assert data in kbus("get", path, "--zookeeper", ensemble).out


def test_what_is_not_there_is_one_sentence(ensemble: str) -> None:
    for command in ("get", "ls"):
        result = kbus(command, "/none", "--zookeeper", ensemble)
        assert (result.exit_code, result.out) == (1, "")
        assert result.err.startswith("Error: There is no node /none in 127.0.0.1:")
        assert len(result.err.splitlines()) == 1


def test_looking_into_a_chroot_does_not_create_it(server: EmbeddedZooKeeper) -> None:
    assert kbus("ls", "--zookeeper", f"{server.address}/not-there").exit_code == 1
    assert "/not-there" not in kbus("ls", "--zookeeper", str(server.address)).out


def test_status_tells_of_every_server(server: EmbeddedZooKeeper) -> None:
    both = f"{server.address},{NOWHERE}"
    result = kbus("status", "--zookeeper", both, "--output", "json")
    first, second = json.loads(result.out)
    assert result.exit_code == 0
    assert (first["serving"], first["mode"]) == (True, "standalone")
    assert (second["serving"], second["problem"]) == (False, "cannot be reached (connection refused)")
    assert "standalone" in kbus("status", "--zookeeper", both).out


def test_without_a_server_the_errors_say_what_to_do() -> None:
    result = kbus("status", "--zookeeper", NOWHERE)
    assert result.exit_code == 1
    assert result.err == (
        "Error: No ZooKeeper server serves at 127.0.0.1:1. Start one with `kbus zookeeper start`, or name "
        "another with --zookeeper.\n"
    )
    result = kbus("get", "/", "--zookeeper", NOWHERE)
    assert result.err.startswith("Error: No answer from ZooKeeper at 127.0.0.1:1. Check the address,")
    result = kbus("ls")
    assert result.exit_code == 1
    assert result.err.startswith("Error: No ZooKeeper is known here. Start one with")


@pytest.mark.parametrize(
    "args", [("get", "brokers"), ("get", "/a//b"), ("ls", "/", "--zookeeper", "host:port")]
)
def test_bad_usage_exits_with_2(args: tuple[str, ...]) -> None:
    result = kbus(*args)
    assert result.exit_code == 2
    assert "is not" in result.err


def test_the_current_local_cluster_is_the_default(ensemble: str, tmp_path: Path) -> None:
    folder = tmp_path / "kbus-home" / "default"
    write_cluster(LocalCluster(folder=folder, bootstrap_servers="127.0.0.1:9092", zookeeper=ensemble))
    assert "/brokers" in kbus("ls").out


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_start_serves_until_it_is_told_to_stop(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen(
        [*KBUS, "start", "--port", "0", "--data-dir", str(tmp_path / "zk"), "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        assert kbus("status", "--zookeeper", facts["address"]).exit_code == 0
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    assert (process.returncode, err) == (0, "")
    with pytest.raises(ProcessLookupError):
        os.kill(facts["pid"], 0)
    assert kbus("status", "--zookeeper", facts["address"]).exit_code == 1


def test_start_on_a_taken_port_is_one_sentence(server: EmbeddedZooKeeper, tmp_path: Path) -> None:
    result = kbus("start", "--port", str(server.port), "--data-dir", str(tmp_path / "zk"))
    assert result.exit_code == 1
    assert result.err == (
        f"Error: ZooKeeper cannot listen on {server.address}, because another program does; stop it, or "
        "choose another port.\n"
    )


def test_start_says_when_the_server_ends_by_itself(tmp_path: Path) -> None:
    with subprocess.Popen(
        [*KBUS, "start", "--port", "0", "--data-dir", str(tmp_path / "zk"), "--output", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        facts = json.loads(process.stdout.readline())
        os.kill(facts["pid"], signal.SIGKILL)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "Error: ZooKeeper ended by itself (code -9). Read " in err
