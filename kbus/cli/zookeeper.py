"""`kbus zookeeper`: run a server, and look into one."""

import base64
import json
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kbus.cli.app import new_app
from kbus.cli.context import local_cluster
from kbus.cli.output import (
    CliError,
    OutputFormat,
    OutputOption,
    format_time,
    print_fields,
    print_json,
    print_json_line,
    print_table,
)

if TYPE_CHECKING:
    from kbus.config import ZooKeeperAddress
    from kbus.zk.session import ZooKeeperSession
    from kbus.zk.store import Stat

T = TypeVar("T")

app = new_app(help="Run a ZooKeeper server and look into one.")

_SESSION_TIMEOUT_MS = 10_000
_CONNECTION_TIMEOUT_MS = 5_000

EnsembleOption = Annotated[
    str | None,
    typer.Option(
        "--zookeeper",
        metavar="HOST:PORT,…/CHROOT",
        help="The ensemble to ask. Default: $KBUS_ZOOKEEPER, then that of the current local cluster.",
        envvar="KBUS_ZOOKEEPER",
        show_default=False,
    ),
]
PathArgument = Annotated[str, typer.Argument(metavar="PATH", help="A node, such as /brokers/ids.")]


@app.command()
def start(
    port: Annotated[
        int,
        typer.Option("--port", min=0, max=65535, help="Where to listen, on 127.0.0.1; 0 is any free port."),
    ] = 2181,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Where to keep the data. Default: $KBUS_HOME/zookeeper."
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Run a ZooKeeper server in the foreground until Ctrl-C or SIGTERM.

    It is for this machine: for a broker started with --set zookeeper.connect=127.0.0.1:PORT."""
    import asyncio

    from kbus.client.local_cluster import kbus_home
    from kbus.zk.embedded import EmbeddedZooKeeper, EmbeddedZooKeeperError

    directory = data_dir or kbus_home() / "zookeeper"
    server = EmbeddedZooKeeper(directory, port=port)

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        async with server:
            _announce(
                {
                    "address": str(server.address),
                    "pid": server.pid,
                    "data_dir": str(directory.absolute()),
                    "log": str(server.log_path),
                },
                output,
            )
            tasks = [asyncio.create_task(stop.wait()), asyncio.create_task(server.wait())]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                task.cancel()
            if not stop.is_set():
                raise CliError(
                    f"ZooKeeper ended by itself (code {tasks[1].result()}).", f"Read {server.log_path}."
                )

    try:
        asyncio.run(serve())
    except EmbeddedZooKeeperError as error:
        raise CliError(str(error)) from None


def _announce(facts: dict[str, object], output: OutputFormat) -> None:
    if output is OutputFormat.JSON:
        print_json_line(facts)
    else:
        print_fields(
            {
                "ZooKeeper": f"ready at {facts['address']} (pid {facts['pid']})",
                "Data": facts["data_dir"],
                "Log": facts["log"],
                "Try": f"kbus broker start --set zookeeper.connect={facts['address']}",
                "Stop": "Ctrl-C",
            }
        )
    sys.stdout.flush()


@app.command()
def status(zookeeper: EnsembleOption = None, output: OutputOption = OutputFormat.TABLE) -> None:
    """Say how each server of the ensemble is. Exits with 1 if none of them serves."""
    import asyncio

    from kbus.zk.probe import ServerStatus, server_status

    address = _ensemble(zookeeper)

    async def ask(host: str, port: int) -> ServerStatus | str:
        try:
            answer = await server_status(host, port, timeout_s=_CONNECTION_TIMEOUT_MS / 1000)
        except TimeoutError:
            return "does not answer"
        except OSError as error:
            return f"cannot be reached ({_reason(error)})"
        return answer or "does not serve, or does not say"

    async def ask_all() -> list[ServerStatus | str]:
        return await asyncio.gather(*(ask(host, port) for host, port in address.servers))

    answers = asyncio.run(ask_all())
    servers = [f"{host}:{port}" for host, port in address.servers]
    if output is OutputFormat.JSON:
        print_json(
            [
                {"server": server, "serving": False, "problem": answer}
                if isinstance(answer, str)
                else {"server": server, "serving": True, **asdict(answer)}
                for server, answer in zip(servers, answers, strict=True)
            ]
        )
    else:
        print_table(
            ("server", "state", "version", "zxid", "nodes", "connections"),
            [
                (server, answer, None, None, None, None)
                if isinstance(answer, str)
                else (
                    server,
                    answer.mode,
                    answer.version,
                    f"{answer.zxid:#x}",
                    answer.node_count,
                    answer.connections,
                )
                for server, answer in zip(servers, answers, strict=True)
            ],
        )
    if all(isinstance(answer, str) for answer in answers):
        raise CliError(
            f"No ZooKeeper server serves at {address.hosts}.",
            "Start one with `kbus zookeeper start`, or name another with --zookeeper.",
        )


@app.command("ls")
def list_nodes(
    path: PathArgument = "/",
    recursive: Annotated[
        bool, typer.Option("--recursive", "-r", help="Also what is below, to any depth.")
    ] = False,
    zookeeper: EnsembleOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the children of a node."""
    from kbus.zk.store import NoNode

    path = _checked(path)

    async def walk(store: "ZooKeeperSession", parent: str) -> "list[tuple[str, Stat]]":
        found = []
        for name in await store.children(parent):
            child = f"{parent.rstrip('/')}/{name}"
            stat = await store.exists(child)
            if stat is None:
                continue  # deleted since
            found.append((child, stat))
            if recursive and stat.num_children:
                try:
                    found += await walk(store, child)
                except NoNode:
                    continue
        return found

    nodes = _with_session(zookeeper, path, lambda store: walk(store, path))
    if output is OutputFormat.JSON:
        print_json([{"path": node, **stat._asdict()} for node, stat in nodes])
        return
    print_table(
        ("path", "version", "children", "session", "changed"),
        [
            (node, stat.version, stat.num_children, _owner(stat), format_time(stat.mtime_ms))
            for node, stat in nodes
        ],
        empty=f"{path} has no children.",
    )


@app.command()
def get(
    path: PathArgument,
    zookeeper: EnsembleOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show what a node holds, JSON laid out, and how it came about."""
    path = _checked(path)
    data, stat = _with_session(zookeeper, path, lambda store: store.get(path))
    encoding, value = _decoded(data)
    if output is OutputFormat.JSON:
        print_json({"path": path, "encoding": encoding, "data": value, "stat": stat._asdict()})
        return
    shown = json.dumps(value, indent=2, ensure_ascii=False) if encoding == "json" else str(value)
    if shown:
        print(shown + "\n")
    print_fields(
        {
            "Version": stat.version,
            "Created": f"{format_time(stat.ctime_ms)} (zxid {stat.czxid:#x})",
            "Changed": f"{format_time(stat.mtime_ms)} (zxid {stat.mzxid:#x})",
            "Children": stat.num_children,
            "Session": _owner(stat),
        }
    )


def _ensemble(option: str | None) -> "ZooKeeperAddress":
    from kbus.config import ZooKeeperAddress

    given = option
    if not given:
        cluster = local_cluster()
        if cluster is None:
            raise CliError(
                "No ZooKeeper is known here.",
                "Start one with `kbus zookeeper start` or `kbus broker start`, or name one with --zookeeper "
                "HOST:PORT.",
            )
        given = cluster.zookeeper
    try:
        return ZooKeeperAddress.parse(given)
    except ValueError:
        raise typer.BadParameter(
            f"{given!r} is not of the form host:port,host:port/chroot.", param_hint="--zookeeper"
        ) from None


def _with_session(option: str | None, path: str, use: "Callable[[ZooKeeperSession], Awaitable[T]]") -> T:
    """Runs `use` with a session that is closed afterwards, and explains what the store says."""
    import asyncio

    from kbus.zk.session import ZooKeeperSession
    from kbus.zk.store import ConnectionLost, NoNode, StoreError

    address = _ensemble(option)

    async def run() -> T:
        store = ZooKeeperSession(
            address,
            session_timeout_ms=_SESSION_TIMEOUT_MS,
            connection_timeout_ms=_CONNECTION_TIMEOUT_MS,
            create_chroot=False,  # to look is not to change
        )
        try:
            await store.open()
        except ConnectionLost:
            raise CliError(
                f"No answer from ZooKeeper at {address.hosts}.",
                "Check the address, or start one with `kbus zookeeper start`.",
            ) from None
        try:
            return await use(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except NoNode:
        raise CliError(
            f"There is no node {path} in {address}.", "List what there is with `kbus zookeeper ls / -r`."
        ) from None
    except StoreError as error:
        raise CliError(f"ZooKeeper at {address.hosts} failed: {error}.") from None


def _checked(path: str) -> str:
    """A path that ZooKeeper takes; a "/" at the end is forgiven."""
    trimmed = path.rstrip("/") or "/"
    parts = trimmed.split("/")[1:]
    if not trimmed.startswith("/") or (trimmed != "/" and any(part in ("", ".", "..") for part in parts)):
        raise typer.BadParameter(f"{path!r} is not a path such as /brokers/ids.", param_hint="PATH")
    return trimmed


def _decoded(data: bytes) -> tuple[str, object]:
    """What a node's bytes are, and how to show them."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return "base64", base64.b64encode(data).decode()
    try:
        return "json", json.loads(text)
    except ValueError:
        return "text", text


def _owner(stat: "Stat") -> str | None:
    """The session of an ephemeral node, as ZooKeeper's own tools write it."""
    return f"{stat.ephemeral_owner & (1 << 64) - 1:#x}" if stat.ephemeral_owner else None


def _reason(error: OSError) -> str:
    return os.strerror(error.errno).lower() if error.errno else str(error)
