from pathlib import Path

import pytest

from .running import Cli


@pytest.fixture(autouse=True)
def no_cluster_of_the_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No test finds, or writes to, what the person who runs it has, or depends on how Python is set up."""
    monkeypatch.setenv("KBUS_HOME", str(tmp_path / "kbus-home"))
    for variable in ("KBUS_BOOTSTRAP_SERVERS", "KBUS_DEBUG", "PYTHONUNBUFFERED"):
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def cli(capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> Cli:
    return Cli(capfdbinary, monkeypatch)
