"""What a person sees while a cluster starts: a line for each of its processes, on a terminal."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.text import Text


class StartProgress:
    """Takes the supervisor's events; rich draws it again and again."""

    def __init__(self) -> None:
        self._lines: dict[str, tuple[str, float, int | None]] = {}

    def event(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "planned":
            for broker in event["brokers"]:
                self._lines.setdefault(f"broker {broker}", ("waiting", time.monotonic(), None))
            return
        name = "ZooKeeper" if event.get("zookeeper") else f"broker {event['broker']}"
        if name == "ZooKeeper" and name not in self._lines:
            self._lines = {name: ("waiting", time.monotonic(), None), **self._lines}
        self._lines[name] = (kind, time.monotonic(), event.get("ms"))

    def __rich__(self) -> "Text":
        from rich.text import Text

        text = Text()
        for name, (state, since, took_ms) in self._lines.items():
            mark, style = _MARKS.get(state, ("·", "dim"))
            if state == "starting":
                took_ms = round((time.monotonic() - since) * 1000)
            duration = "" if took_ms is None else f"  {took_ms / 1000:.1f} s"
            text.append(f"{mark} {name:<12} {state}{duration}\n", style=style)
        return text


_MARKS = {"ready": ("✓", "green"), "failed": ("✗", "red"), "starting": ("…", ""), "stopped": ("-", "")}


@contextmanager
def start_progress() -> Iterator[StartProgress]:
    """Shown while the block runs, if stderr is a terminal, and gone after it."""
    shown = StartProgress()
    if not sys.stderr.isatty():
        yield shown
        return
    from rich.console import Console
    from rich.live import Live

    with Live(shown, console=Console(stderr=True), transient=True, refresh_per_second=12):
        yield shown
