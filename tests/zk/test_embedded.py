"""The embedded server is a real one, keeps its data, and never outlives its parent."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kbus.zk.embedded import EmbeddedZooKeeper, EmbeddedZooKeeperError
from kbus.zk.probe import server_status
from kbus.zk.session import ZooKeeperSession
from kbus.zk.store import SessionState

from .conftest import PATIENCE_S, until


def session_with(server: EmbeddedZooKeeper, *, session_timeout_ms: int) -> ZooKeeperSession:
    return ZooKeeperSession(
        server.address, session_timeout_ms=session_timeout_ms, connection_timeout_ms=PATIENCE_S * 1000
    )


def is_running(pid: int) -> bool:
    """A zombie is not: it only waits for somebody to read its exit code."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


async def test_data_survives_a_restart_and_so_do_sessions(tmp_path: Path) -> None:
    directory = tmp_path / "with a space and é"
    server = EmbeddedZooKeeper(directory)
    await server.start()
    first_pid = server.pid
    store = session_with(server, session_timeout_ms=20_000)
    states: list[SessionState] = []
    try:
        await store.open()
        store.listen(states.append)
        session_id = store.session_id
        await store.create("/kept", b"data")
        _, mine = await store.create("/mine", ephemeral=True)
        await server.stop()
        await until(lambda: store.state is SessionState.SUSPENDED)
        server = EmbeddedZooKeeper(directory, port=server.port)
        await server.start()
        assert server.pid != first_pid
        await store.wait_connected()
        assert (await store.get("/kept"))[0] == b"data"
        assert store.session_id == session_id
        assert await store.exists("/mine") == mine
        assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    finally:
        await store.close()
        await server.stop()


async def test_a_killed_server_loses_nothing_it_answered(tmp_path: Path) -> None:
    server = EmbeddedZooKeeper(tmp_path)
    await server.start()
    store = session_with(server, session_timeout_ms=20_000)
    try:
        await store.open()
        for number in range(20):
            await store.create(f"/node{number}", b"%d" % number)
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        assert await server.wait() == -signal.SIGKILL
        await server.stop()
        server = EmbeddedZooKeeper(tmp_path, port=server.port)
        await server.start()
        await until(lambda: store.state is SessionState.CONNECTED)
        assert len([name for name in await store.children("/") if name.startswith("node")]) == 20
    finally:
        await store.close()
        await server.stop()


async def test_it_tells_how_it_is_and_stops_when_told(tmp_path: Path) -> None:
    async with EmbeddedZooKeeper(tmp_path) as server:
        status = await server_status("127.0.0.1", server.port)
        assert status is not None
        assert status.mode == "standalone"
        assert status.version.startswith("3.")
        pid = server.pid
        assert pid is not None
        assert is_running(pid)
    assert not is_running(pid)
    assert server.pid is None
    with pytest.raises(OSError, match="Connect call failed"):
        await server_status("127.0.0.1", server.port)


async def test_a_taken_port_is_said(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        server = EmbeddedZooKeeper(tmp_path, port=port)
        with pytest.raises(
            EmbeddedZooKeeperError,
            match=rf"^ZooKeeper cannot listen on 127\.0\.0\.1:{port}, because another program does; stop it,",
        ):
            await server.start()
    assert server.pid is None


async def test_two_servers_never_share_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kbus.zk.embedded._LOCK_TIMEOUT_S", 0.1)
    async with EmbeddedZooKeeper(tmp_path):
        with pytest.raises(EmbeddedZooKeeperError, match=r"Another ZooKeeper server uses .*; stop it, or"):
            await EmbeddedZooKeeper(tmp_path).start()


async def test_a_server_that_fails_to_start_shows_its_own_error(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "version-2").write_text("a file where a directory belongs")
    server = EmbeddedZooKeeper(tmp_path)
    with pytest.raises(
        EmbeddedZooKeeperError,
        match=r"^ZooKeeper did not start: .*version-2.*; its log is .*zookeeper\.log\.$",
    ):
        await server.start()
    assert server.pid is None


async def test_an_unusable_directory_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        EmbeddedZooKeeperError, match=r"ZooKeeper cannot keep its data in .*: Not a directory\.$"
    ):
        await EmbeddedZooKeeper(tmp_path / "file").start()


async def test_it_dies_with_a_parent_that_is_killed_and_the_directory_is_free_again(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys\n"
        "from pathlib import Path\n"
        "from kbus.zk.embedded import EmbeddedZooKeeper\n"
        "async def main():\n"
        "    server = EmbeddedZooKeeper(Path(sys.argv[1]))\n"
        "    await server.start()\n"
        "    print(server.pid, flush=True)\n"
        "    await server.wait()\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen(  # noqa: ASYNC220 - nothing else runs on this loop
        [sys.executable, "-c", program, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pid = int(await asyncio.to_thread(parent.stdout.readline))
        assert is_running(pid)
        parent.kill()
    await until(lambda: not is_running(pid))
    async with EmbeddedZooKeeper(tmp_path):
        pass


async def test_ctrl_c_in_the_terminal_is_not_for_the_server(tmp_path: Path) -> None:
    async with EmbeddedZooKeeper(tmp_path) as server:
        assert server.pid is not None
        assert os.getpgid(server.pid) != os.getpgid(0)
