from collections.abc import Iterator
from pathlib import Path

import pytest

from .commands import Kbus, free_port, stop_all


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No test finds the clusters of the person who runs it; those that it starts end with it."""
    folder = tmp_path / "home"
    monkeypatch.setenv("KBUS_HOME", str(folder))
    for variable in ("KBUS_BOOTSTRAP_SERVERS", "KBUS_DEBUG", "KBUS_ZOOKEEPER", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(variable, raising=False)
    yield folder
    stop_all()


@pytest.fixture
def kbus(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Kbus:
    return Kbus(capfdbinary, monkeypatch)


@pytest.fixture
def started(kbus: Kbus, zookeeper: str) -> Kbus:
    """With a cluster of one broker, called local, on the ZooKeeper of the whole test run."""
    options = ("--brokers", "1", "--base-port", str(free_port()), "--set", f"zookeeper.connect={zookeeper}")
    kbus.ok("cluster", "start", *options)
    return kbus
