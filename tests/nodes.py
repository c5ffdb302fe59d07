"""Real nodes for tests: a process each, started with `kbus broker start`, on ports that nobody else has."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import TracebackType

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0


class NodeProcess:
    """A broker process. `with NodeProcess(...) as node` starts it and stops it; it can be killed between."""

    def __init__(
        self, folder: Path, *, zookeeper: str | None, settings: dict[str, str] | None = None
    ) -> None:
        """Without `zookeeper` the node brings its own."""
        self.folder = folder
        self.log_dir = folder / "data"
        self.home = folder / "home"
        self.log_path = folder / "broker.log"
        self._settings = {
            "broker.id": "1",
            "listeners": "PLAINTEXT://127.0.0.1:0",
            "log.dirs": str(self.log_dir),
            "num.partitions": "1",
            **(settings or {}),
        }
        if zookeeper is not None:
            self._settings["zookeeper.connect"] = zookeeper
        self._process: subprocess.Popen[bytes] | None = None
        self.bootstrap = ""
        self.zookeeper = ""

    @property
    def port(self) -> int:
        return int(self.bootstrap.rpartition(":")[2])

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, **more_settings: str) -> None:
        """Returns when the node serves. Started again, it listens where it did before."""
        assert self._process is None, "the node runs already"
        self.folder.mkdir(parents=True, exist_ok=True)
        self._settings |= more_settings
        command = [sys.executable, "-m", "kbus", "broker", "start", "--output", "json"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=log, env={**os.environ, "KBUS_HOME": str(self.home)}
            )
        ready = self._read_ready_line()
        self.bootstrap = ready["bootstrap_servers"]
        self.zookeeper = ready["zookeeper"]
        self._settings["listeners"] = f"PLAINTEXT://{self.bootstrap}"

    def _read_ready_line(self) -> dict[str, str]:
        assert self._process is not None
        assert self._process.stdout is not None
        watchdog = threading.Timer(START_TIMEOUT_S, self._process.kill)
        watchdog.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watchdog.cancel()
        if not line:
            code = self.wait()
            raise AssertionError(f"the node ended with {code}; its log:\n{self.log_text()}")
        ready: dict[str, str] = json.loads(line)
        return ready

    def log_text(self) -> str:
        return self.log_path.read_text(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)

    def wait(self) -> int:
        assert self._process is not None
        process, self._process = self._process, None
        try:
            code = process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise AssertionError(f"the node did not stop; its log:\n{self.log_text()}") from None
        finally:
            if process.stdout is not None:
                process.stdout.close()
        return code

    def stop(self) -> int:
        self.signal(signal.SIGTERM)
        return self.wait()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self.wait()

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def __enter__(self) -> "NodeProcess":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            code = self.stop()
            if error is None:
                assert code == 0, f"the node ended with {code}; its log:\n{self.log_text()}"
