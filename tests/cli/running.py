"""Ways to run the command line in tests."""

import io
import os
import subprocess
import sys
from collections.abc import Mapping
from typing import NamedTuple

import pytest

from kbus.cli.main import main

KBUS = [sys.executable, "-c", "from kbus.cli.main import main; main()"]


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str


class Cli:
    """Runs commands in this process, which is quick, with output captured."""

    def __init__(self, capfdbinary: pytest.CaptureFixture[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capture = capfdbinary
        self._monkeypatch = monkeypatch

    def __call__(self, *args: str, input: bytes = b"") -> Result:
        self._capture.readouterr()
        with self._monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(input)))
            with pytest.raises(SystemExit) as exit_info:
                main(args)
        sys.stdout.flush()
        out, err = self._capture.readouterr()
        code = exit_info.value.code
        assert isinstance(code, int | None)
        return Result(code or 0, out.decode(), err.decode())


def run(*args: str, input: bytes = b"", env: Mapping[str, str] | None = None) -> Result:
    """Runs a command in a process of its own."""
    done = subprocess.run(
        [*KBUS, *args], input=input, capture_output=True, env={**os.environ, **(env or {})}, timeout=60
    )
    return Result(done.returncode, done.stdout.decode(), done.stderr.decode())
