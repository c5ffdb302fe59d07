"""A real ZooKeeper server as a child process, from the jars that come inside pyspark.

It listens on this machine only, keeps its data in one directory, and lives no longer than the process that
started it, however that one ends.
"""

import asyncio
import errno
import fcntl
import importlib.util
import logging
import os
import random
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Self

from kbus.config import ZooKeeperAddress
from kbus.zk.java import JavaNotFound, find_java
from kbus.zk.probe import server_status

log = logging.getLogger(__name__)

# Of pyspark's 250 jars, those without which the server does not start.
_JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-[0-9]*.jar",
    "slf4j-api-[0-9]*.jar",
    "log4j-slf4j2-impl-[0-9]*.jar",
    "log4j-api-[0-9]*.jar",
    "log4j-core-[0-9]*.jar",
    "metrics-core-[0-9]*.jar",
    "snappy-java-[0-9]*.jar",
)
# Made for a server of a few thousand nodes that starts quickly: 60 MB of memory when idle.
_JVM_OPTIONS = (
    "-Xms8m",
    "-Xmx128m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    "-XX:-UsePerfData",
    "-Dzookeeper.preAllocSize=1024",  # KiB of transaction log set aside at a time, instead of 64 MiB
)
_MAIN_CLASS = "org.apache.zookeeper.server.quorum.QuorumPeerMain"

# tickTime is the grain of session timeouts: sessions from 1 s expire within half a second of their time.
_CONFIG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=120000
dataDir={data_dir}
clientPort={port}
clientPortAddress={host}
maxClientCnxns=1000
admin.enableServer=false
4lw.commands.whitelist=srvr,ruok,mntr
autopurge.snapRetainCount=3
autopurge.purgeInterval=1
"""
_LOG_CONFIG = """\
status = error
appender.out.type = Console
appender.out.name = out
appender.out.layout.type = PatternLayout
appender.out.layout.pattern = %d %-5p %c{1}: %m%n
rootLogger.level = warn
rootLogger.appenderRef.out.ref = out
"""

# Linux kills a process that has asked for it (PR_SET_PDEATHSIG, 1) when the thread that started it is gone,
# and keeps to it across exec. Java cannot ask, so this does and then becomes Java. If the parent was gone
# before the asking, nobody would send the signal: hence the look at the parent's id.
_DIE_WITH_PARENT = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() == int(sys.argv[1]):
    os.execv(sys.argv[2], sys.argv[2:])
"""

_START_TIMEOUT_S = 30.0
_STOP_TIMEOUT_S = 10.0
_LOCK_TIMEOUT_S = 5.0
_POLL_S = 0.02
_PROBE_TIMEOUT_S = 0.25
_PORT_ATTEMPTS = 5
# Below the range from which the system takes ports for outgoing connections and for port 0.
_PORTS = range(20000, 32000)
_MAX_LOG_BYTES = 10 << 20


class EmbeddedZooKeeperError(Exception):
    """The server cannot be started. The text is a sentence for people."""


class EmbeddedZooKeeper:
    """`async with EmbeddedZooKeeper(directory) as server: server.address`, or `start` and `stop`.

    `start` must be called on a thread that lives as long as the process (the event loop's, not a worker's):
    the server dies with that thread.
    """

    def __init__(self, directory: Path, *, port: int = 0) -> None:
        """Port 0 is any free one, found at each start."""
        self._directory = directory.absolute()
        self._wanted_port = port
        self._port = port
        self._host = "127.0.0.1"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> ZooKeeperAddress:
        return ZooKeeperAddress(((self._host, self._port),))

    @property
    def port(self) -> int:
        return self._port

    @property
    def log_path(self) -> Path:
        return self._directory / "zookeeper.log"

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    async def start(self) -> None:
        """Returns when the server serves. Raises EmbeddedZooKeeperError."""
        if self._process is not None:
            raise RuntimeError("the server has been started already")
        try:
            java = find_java()
        except JavaNotFound as error:
            raise EmbeddedZooKeeperError(str(error)) from None
        self._prepare_directory()
        lock = await self._lock()
        try:
            for attempts_left in reversed(range(_PORT_ATTEMPTS)):
                self._port = self._wanted_port or self._free_port()
                try:
                    self._check_port()
                    await self._wait_until_serving(self._spawn(java, lock))
                    break
                except _PortTakenError:
                    if self._wanted_port or not attempts_left:
                        raise
                except BaseException:
                    await self.stop()
                    raise
        finally:
            os.close(lock)  # the server holds it now, for as long as it lives
        log.info("ZooKeeper serves at %s (pid %s, data in %s)", self.address, self.pid, self._directory)

    async def stop(self) -> None:
        """SIGTERM, and SIGKILL if that does not do, to this server only."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        if not await _ended(process, _STOP_TIMEOUT_S):
            log.warning(
                "ZooKeeper (pid %s) did not stop within %s s and is killed", process.pid, _STOP_TIMEOUT_S
            )
            process.kill()
            await _ended(process, _STOP_TIMEOUT_S)

    async def restart(self) -> None:
        """At the port it had, where its clients look for it."""
        await self.stop()
        self._wanted_port = self._port
        await self.start()

    async def wait(self) -> int:
        """Until the server ends, which it does by itself only if something is wrong; its exit code."""
        process = self._process
        if process is None:
            raise RuntimeError("the server has not been started")
        while not await _ended(process, _STOP_TIMEOUT_S):
            pass
        assert process.returncode is not None
        return process.returncode

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    def _prepare_directory(self) -> None:
        try:
            (self._directory / "data").mkdir(parents=True, exist_ok=True)
            (self._directory / "log4j2.properties").write_text(_LOG_CONFIG)
        except OSError as error:
            raise EmbeddedZooKeeperError(
                f"ZooKeeper cannot keep its data in {self._directory}: {error.strerror}."
            ) from None

    async def _lock(self) -> int:
        """ZooKeeper itself would let two servers write to one directory.

        The lock belongs to the open file, which the server inherits and never closes. A server whose parent
        was killed a moment ago is about to die: worth a short wait.
        """
        descriptor = os.open(self._directory / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        deadline = asyncio.get_running_loop().time() + _LOCK_TIMEOUT_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if asyncio.get_running_loop().time() < deadline:
                    await asyncio.sleep(_POLL_S)
                    continue
                os.close(descriptor)
                raise EmbeddedZooKeeperError(
                    f"Another ZooKeeper server uses {self._directory}; stop it, or choose another directory."
                ) from None
            except BaseException:
                os.close(descriptor)
                raise

    def _free_port(self) -> int:
        for port in random.sample(_PORTS, 200):
            if _can_bind(self._host, port):
                return port
        raise EmbeddedZooKeeperError(
            f"No port between {_PORTS.start} and {_PORTS.stop - 1} is free for ZooKeeper; choose one for it."
        )

    def _check_port(self) -> None:
        """Asked first, because whoever has the port might be a ZooKeeper and would answer for ours."""
        if not _can_bind(self._host, self._port):
            raise _PortTakenError(
                f"ZooKeeper cannot listen on {self._host}:{self._port}, because another program does; "
                "stop it, or choose another port."
            )

    def _spawn(self, java: Path, lock: int) -> int:
        config = self._directory / "zoo.cfg"
        config.write_text(
            _CONFIG.format(data_dir=_escaped(str(self._directory / "data")), port=self._port, host=self._host)
        )
        logging_config = f"-Dlog4j2.configurationFile={(self._directory / 'log4j2.properties').as_uri()}"
        command = [str(java), *_JVM_OPTIONS, logging_config, "-cp", _class_path(), _MAIN_CLASS, str(config)]
        if sys.platform == "linux":
            command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), *command]
        if self.log_path.exists() and self.log_path.stat().st_size > _MAX_LOG_BYTES:
            self.log_path.replace(self.log_path.with_suffix(".log.1"))
        with self.log_path.open("ab") as log_file:
            log_start = log_file.tell()
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log_file,
                stderr=subprocess.STDOUT,
                cwd=self._directory,
                pass_fds=(lock,),
                start_new_session=True,  # Ctrl-C is for the parent, which stops the server last
            )
        return log_start

    async def _wait_until_serving(self, log_start: int) -> None:
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _START_TIMEOUT_S
        while loop.time() < deadline:
            if process.poll() is not None:
                self._process = None
                raise self._failure(log_start)
            try:
                # A connection that arrives while the server sets itself up may never be answered: ask anew.
                status = await server_status(self._host, self._port, timeout_s=_PROBE_TIMEOUT_S)
                if status is not None and process.poll() is None:
                    return
            except (OSError, TimeoutError):
                pass  # not yet
            await asyncio.sleep(_POLL_S)
        raise EmbeddedZooKeeperError(
            f"ZooKeeper did not answer within {_START_TIMEOUT_S:.0f} s; its log is {self.log_path}."
        )

    def _failure(self, log_start: int) -> EmbeddedZooKeeperError:
        with self.log_path.open("rb") as log_file:
            log_file.seek(log_start)
            text = log_file.read(_MAX_LOG_BYTES).decode(errors="replace")
        reason = _reason(text)
        error = _PortTakenError if "BindException" in text else EmbeddedZooKeeperError
        return error(f"ZooKeeper did not start: {reason}; its log is {self.log_path}.")


class _PortTakenError(EmbeddedZooKeeperError):
    pass


def _reason(text: str) -> str:
    """The innermost cause of the last stack trace, or else the last words."""
    causes = re.findall(
        r"^(?:Caused by: |Exception in thread \S+ )?([\w.]+(?:Exception|Error)\b.*)$", text, re.M
    )
    if causes:
        return str(causes[-1]).strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it ended without a word"


def _can_bind(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as ZooKeeper does
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return False
            raise EmbeddedZooKeeperError(
                f"ZooKeeper cannot listen on {host}:{port}: {error.strerror}; choose another port."
            ) from None
    return True


def _class_path() -> str:
    """Looks pyspark up without importing it, which would take a second."""
    spec = importlib.util.find_spec("pyspark")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedZooKeeperError(
            "ZooKeeper's jars come with pyspark, which is not installed; run: pip install pyspark."
        )
    folder = Path(spec.submodule_search_locations[0]) / "jars"
    jars = []
    for pattern in _JARS:
        found = sorted(folder.glob(pattern))
        if not found:
            raise EmbeddedZooKeeperError(
                f"{folder} has no {pattern}, which ZooKeeper needs; "
                "run: pip install --force-reinstall pyspark."
            )
        jars.append(str(found[-1]))
    return os.pathsep.join(jars)


def _escaped(text: str) -> str:
    """For a .properties file, which Java reads as Latin-1."""
    utf16 = text.replace("\\", "\\\\").encode("utf-16-be")
    units = (int.from_bytes(utf16[index : index + 2]) for index in range(0, len(utf16), 2))
    return "".join(chr(unit) if unit < 128 else f"\\u{unit:04x}" for unit in units)


async def _ended(process: subprocess.Popen[bytes], timeout_s: float) -> bool:
    deadline = asyncio.get_running_loop().time() + timeout_s
    while process.poll() is None:
        if asyncio.get_running_loop().time() > deadline:
            return False
        await asyncio.sleep(_POLL_S)
    if process.returncode not in (0, -signal.SIGTERM, 128 + signal.SIGTERM):
        log.warning("ZooKeeper (pid %s) ended with code %s", process.pid, process.returncode)
    return True
