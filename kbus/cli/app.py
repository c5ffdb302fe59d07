"""The frame of the command line: sub-commands loaded on first use, errors turned into exit codes."""

import importlib
import os
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from kbus.cli.output import CliError, print_error

EXIT_BROKEN_PIPE = 141
"""What a shell reports for a program that SIGPIPE ended: nothing was wrong with the program."""

_HELP_OPTIONS = {"help_option_names": ["--help", "-h"]}


class Lazy(NamedTuple):
    """A sub-command in `module`, which has the typer application as `app`, and its line in the help."""

    module: str
    help: str


def new_app(
    *, help: str = "", cls: type[TyperGroup] | None = None, add_completion: bool = False
) -> typer.Typer:
    """A typer application with the looks of kbus: plain help, because rich's costs 80 ms more."""
    return typer.Typer(
        help=help,
        cls=cls or Group,
        add_completion=add_completion,
        no_args_is_help=True,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings=_HELP_OPTIONS,
    )


class _Placeholder(TyperCommand):
    """Stands for a command whose module is not imported: enough for help, completion and did-you-mean."""

    def __init__(self, name: str, lazy: Lazy) -> None:
        super().__init__(name, help=lazy.help)
        self._module = lazy.module

    def load(self) -> TyperCommand | TyperGroup:
        app = importlib.import_module(self._module).app
        command = cast("TyperCommand | TyperGroup", get_command(app))
        command.name = self.name
        return command


class Group(TyperGroup):
    """A group that completes without pydantic, whose import takes typer 80 ms.

    typer coerces values with it, and even flags that are not given (--help, --install-completion) unless
    their default is False. Completion needs no coerced values at all."""

    def get_params(self, ctx: Any) -> Any:
        params = super().get_params(ctx)
        for param in params:
            if getattr(param, "is_flag", False) and param.default is None:
                param.default = False
        return params

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        if isinstance(command, _Placeholder):
            command = command.load()
        if ctx.resilient_parsing and isinstance(command, TyperCommand):
            for param in command.get_params(ctx):
                param.process_value = _as_given  # type: ignore[method-assign]
        return name, command, rest


def _as_given(ctx: object, value: object) -> object:
    return value


class LazyGroup(Group):
    """Sub-commands come from `lazy_commands`; a module is imported when its command is resolved.

    Also the one place where what a command raises becomes a sentence and an exit code."""

    lazy_commands: Mapping[str, Lazy] = {}

    def __init__(self, **attrs: Any) -> None:
        super().__init__(**attrs)
        self._debug = False
        for name, lazy in self.lazy_commands.items():
            self.add_command(_Placeholder(name, lazy))

    def invoke(self, ctx: Any) -> Any:
        self._debug = bool(ctx.params.get("debug"))
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:
            _discard_stdout()
            raise typer.Exit(EXIT_BROKEN_PIPE) from None
        return result

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Bad usage, exits and Ctrl-C are typer's and leave as SystemExit; the rest is explained here."""
        try:
            return super().main(*args, **kwargs)
        except CliError as error:
            if self._debug:
                raise
            print_error(error)
            sys.exit(error.exit_code)
        except Exception as error:  # the last resort: nothing above this frame would explain it
            if self._debug:
                raise
            print_error(_explain(error))
            sys.exit(1)


def _explain(error: Exception) -> CliError:
    if isinstance(error, OSError):
        reason = error.strerror or str(error)
        return CliError(f"{error.filename}: {reason}." if error.filename else f"{reason}.")
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    return CliError(f"kbus failed unexpectedly ({what}).", "Run it as `kbus --debug …` to see where.")


def _discard_stdout() -> None:
    """The reader of stdout has gone: what is still buffered must not raise again when Python exits."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
    os.close(devnull)
