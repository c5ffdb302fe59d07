"""The supervisor as a program: its lock, its socket, its table of commands, its end."""

import asyncio
import fcntl
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kbus.cluster.control import MAX_LINE_BYTES, listening_socket
from kbus.cluster.folder import ClusterFolder
from kbus.cluster.orphans import name_as_supervisor
from kbus.cluster.spec import Wishes
from kbus.cluster.supervisor import REFUSALS, Emit, Supervisor

log = logging.getLogger(__name__)

_LOG_FORMAT: Final = "%(asctime)s %(levelname)-7s %(name)s: %(message)s"
Arguments = Mapping[str, Any]
Command = Callable[[Supervisor, Arguments, Emit], Awaitable[Any]]


class AlreadySupervisedError(Exception):
    """Another supervisor has the cluster."""


async def _status(supervisor: Supervisor, arguments: Arguments, emit: Emit) -> Any:
    return supervisor.describe()


_COMMANDS: Final[Mapping[str, Command]] = {
    "start": lambda supervisor, a, emit: supervisor.start(Wishes.from_dict(a["wishes"]), emit),
    "stop": lambda supervisor, a, emit: supervisor.stop(emit),
    "status": _status,
    "add-brokers": lambda supervisor, a, emit: supervisor.add_brokers(a["count"], a["wishes"], emit),
    "start-broker": lambda supervisor, a, emit: supervisor.start_broker(a["broker"], a["settings"], emit),
    "stop-broker": lambda supervisor, a, emit: supervisor.stop_broker(a["broker"]),
    "restart-broker": lambda supervisor, a, emit: supervisor.restart_broker(a["broker"], a["settings"], emit),
    "kill-broker": lambda supervisor, a, emit: supervisor.kill_broker(a["broker"]),
    "pause-broker": lambda supervisor, a, emit: supervisor.pause_broker(a["broker"]),
    "resume-broker": lambda supervisor, a, emit: supervisor.resume_broker(a["broker"]),
}


def run(folder: ClusterFolder, on_serving: Callable[[], None]) -> None:
    """Until the cluster is stopped, by command, SIGTERM or SIGINT. Raises AlreadySupervisedError."""
    logging.basicConfig(level=logging.INFO, format=_LOG_FORMAT)
    lock = os.open(folder.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise AlreadySupervisedError from None
        asyncio.run(_serve(folder, on_serving))
    finally:
        os.close(lock)


async def _serve(folder: ClusterFolder, on_serving: Callable[[], None]) -> None:
    name_as_supervisor()
    supervisor = Supervisor(folder)
    supervisor.warm_up()
    loop = asyncio.get_running_loop()
    tasks: set[asyncio.Task[None]] = set()

    def request_stop() -> None:
        task = loop.create_task(supervisor.stop())
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def serve_one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """In a task of its own kind: the end of the server waits for it, and nothing cancels it, since a
        command goes on when the one who gave it has gone."""
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await _answer(supervisor, reader, writer)
        finally:
            tasks.discard(task)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, request_stop)
    server = await asyncio.start_unix_server(serve_one, sock=listening_socket(folder), limit=MAX_LINE_BYTES)
    folder.pid_file.write_text(f"{os.getpid()}\n", encoding="ascii")
    log.info("supervising cluster %s (pid %d)", folder.name, os.getpid())
    try:
        on_serving()
        await supervisor.stopped.wait()
    finally:
        # First of all: whoever asks now must find nobody, instead of somebody who is about to go.
        (folder.path / "control.sock").unlink(missing_ok=True)
        server.close()
        folder.pid_file.unlink(missing_ok=True)
        if tasks:
            await asyncio.wait(tasks)
        log.info("cluster %s has stopped", folder.name)


async def _answer(supervisor: Supervisor, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    def emit(message: Mapping[str, Any]) -> None:
        if not writer.transport.is_closing():
            writer.write(json.dumps(message).encode() + b"\n")

    try:
        line = await reader.readline()
        if not line:
            return
        request = json.loads(line)
        name = request.pop("command")
        if name != "status":
            log.info("asked to %s %s", name, request)
        command = _COMMANDS.get(name)
        if command is None:
            emit({"error": f"The supervisor does not know {name!r}; stop the cluster and start it again."})
            return
        emit({"result": await command(supervisor, request, emit)})
    except REFUSALS as error:
        log.warning("%s", error)
        emit({"error": str(error)})
        if not supervisor.has_work:
            await supervisor.stop()  # nothing came of the start: nothing is left to supervise
    except Exception as error:
        log.exception("a command failed")
        log_file = supervisor.folder.log_file
        emit({"error": f"The supervisor failed unexpectedly ({error!r}); its log is {log_file}."})
    finally:
        writer.close()
