import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kbus import __version__
from kbus.cli import segment_files
from kbus.cli.main import app
from kbus.cli.output import CliError

from .running import KBUS, Cli, run

COMMANDS = ("broker", "zookeeper", "topic", "console-produce", "console-consume", "segment")
HEAVY = ("rich", "pydantic", "confluent_kafka", "kio", "kazoo", "asyncio", "pyspark", "kbus.cli.topic")

_SHOW_MODULES = """
import atexit, sys
atexit.register(lambda: print("MODULES", *(m for m in sys.modules if sys.modules[m]), file=sys.stderr))
from kbus.cli.main import main
main()
"""


def _modules_after(args: list[str], env: dict[str, str]) -> tuple[str, set[str]]:
    done = subprocess.run(
        [sys.executable, "-c", _SHOW_MODULES, *args],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        timeout=60,
    )
    return done.stdout, set(done.stderr.rpartition("MODULES")[2].split())


def test_help_lists_every_command_and_imports_none_of_them() -> None:
    out, modules = _modules_after(["--help"], {})
    for command in COMMANDS:
        assert f"\n  {command} " in out
    assert not modules & set(HEAVY)


@pytest.mark.parametrize(
    ("words", "offered"),
    [("", COMMANDS), ("topic ", ("create", "describe")), ("topic create --", ("--partitions", "--config"))],
)
def test_completion_imports_nothing_that_takes_time(words: str, offered: tuple[str, ...]) -> None:
    line = f"kbus {words}"
    position = str(len(line.split()) if line.endswith(" ") else len(line.split()) - 1)
    environment = {"_KBUS_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": position}
    out, modules = _modules_after([], environment)
    assert set(offered) <= set(out.split())
    assert not modules & (set(HEAVY) - {"kbus.cli.topic"})


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_completion_works_in_other_shells(shell: str) -> None:
    environment = {
        "_KBUS_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_ARGS": "kbus ",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
    }
    out, modules = _modules_after([], environment)
    assert all(command in out for command in COMMANDS)
    assert not modules & set(HEAVY)


def test_version_is_shown(cli: Cli) -> None:
    assert cli("--version") == (0, f"kbus {__version__}\n", "")


def test_a_mistyped_command_is_bad_usage_with_a_suggestion(cli: Cli) -> None:
    code, out, err = cli("topc")
    assert code == 2
    assert out == ""
    assert "Did you mean 'topic'?" in err


@pytest.mark.parametrize("command", [["topic"], ["segment"], ["broker"]])
def test_a_noun_alone_shows_its_help(cli: Cli, command: list[str]) -> None:
    code, _, err = cli(*command)
    assert code == 2
    assert "Commands:" in err


@pytest.mark.parametrize(
    "command",
    [
        *(["topic", verb] for verb in ("create", "list", "describe", "alter", "delete")),
        *(["segment", verb] for verb in ("list", "dump", "verify")),
        ["console-produce"],
        ["console-consume"],
    ],
)
def test_every_command_offers_json(cli: Cli, command: list[str]) -> None:
    code, out, _ = cli(*command, "--help")
    assert code == 0
    assert "--output" in out
    assert "json" in out


class TestErrors:
    def test_a_failure_is_one_sentence_on_stderr(self, cli: Cli) -> None:
        code, out, err = cli("segment", "list", "/no/such/folder")
        assert (code, out) == (1, "")
        assert err == "Error: /no/such/folder: no such file or folder.\n"

    def test_an_unexpected_failure_is_explained_without_a_traceback(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def broken(targets: object) -> object:
            raise KeyError("missing")

        monkeypatch.setattr(segment_files, "find", broken)
        code, _, err = cli("segment", "list")
        assert code == 1
        assert err.count("\n") == 1
        assert "KeyError" in err
        assert "--debug" in err

    def test_an_os_error_names_the_file(self, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
        def denied(targets: object) -> object:
            raise PermissionError(13, "Permission denied", "/data/x.log")

        monkeypatch.setattr(segment_files, "find", denied)
        assert cli("segment", "list") == (1, "", "Error: /data/x.log: Permission denied.\n")

    def test_debug_lets_the_traceback_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(CliError):
            app(["--debug", "segment", "list", "/no/such/folder"])

    def test_debug_can_come_from_the_environment(self) -> None:
        result = run("segment", "list", "/no/such/folder", env={"KBUS_DEBUG": "1"})
        assert result.exit_code == 1
        assert "Traceback" in result.err


@pytest.mark.parametrize("count", [1, 50_000], ids=["noticed at the end", "noticed in between"])
def test_a_reader_that_has_gone_ends_a_command_quietly(tmp_path: Path, count: int) -> None:
    epochs = tmp_path / "leader-epoch-checkpoint"
    epochs.write_text(f"0\n{count}\n" + "".join(f"{number} {number}\n" for number in range(count)))
    read_end, write_end = os.pipe()
    os.close(read_end)
    done = subprocess.run(
        [*KBUS, "segment", "dump", str(epochs)], stdout=write_end, stderr=subprocess.PIPE, timeout=30
    )
    os.close(write_end)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_a_command_quietly(tmp_path: Path) -> None:
    (tmp_path / "00000000000000000000.log").touch()
    epochs = tmp_path / "leader-epoch-checkpoint"
    os.mkfifo(epochs)
    with subprocess.Popen(
        [*KBUS, "segment", "dump", "--index", str(tmp_path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        with epochs.open("w"):  # returns when the command has begun to read, which then waits for us
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
        assert process.communicate() == (b"", b"")
