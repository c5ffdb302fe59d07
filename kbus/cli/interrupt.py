"""Ctrl-C and SIGTERM as a wish to stop, so that a command ends at a point of its own choice."""

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TypeVar

T = TypeVar("T")


class InterruptedReadError(Exception):
    """The signal arrived while a blocking call waited for input."""


class Interrupt:
    """While entered, SIGINT and SIGTERM set `signal_number`; only a call made by `waiting` is broken off."""

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._waiting = False
        self._previous: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    @property
    def exit_code(self) -> int:
        """The shell's convention for a program that a signal ended; 0 without one."""
        return 0 if self.signal_number is None else 128 + self.signal_number

    def waiting(self, call: Callable[[], T]) -> T:
        """The result of a call that may block for ever; InterruptedReadError if a signal comes first."""
        self._waiting = True
        try:
            if self.signal_number is not None:
                raise InterruptedReadError
            return call()
        finally:
            self._waiting = False

    def __enter__(self) -> "Interrupt":
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        repeated = self.signal_number is not None
        self.signal_number = number
        if self._waiting:
            self._waiting = False
            raise InterruptedReadError
        if repeated:
            # The person has asked twice: whatever is being finished is not worth waiting for.
            raise KeyboardInterrupt
