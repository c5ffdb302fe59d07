"""The logs of several processes as one stream of lines."""

import re
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

_BEGINNING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}")
"""Of an entry; lines without it, such as those of a traceback, belong to the entry before them."""
_POLL_S = 0.1
_WINDOW_BYTES = 4 * 1024 * 1024


def print_last(files: Mapping[str, Path], count: int) -> dict[str, int]:
    """The last `count` lines of all together, by time. Returns how far each file was read."""
    ends: dict[str, int] = {}
    entries: list[tuple[str, str, str]] = []
    for name, path in files.items():
        try:
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - _WINDOW_BYTES))
                data = file.read()
                ends[name] = file.tell()
        except FileNotFoundError:
            ends[name] = 0
            continue
        time_of_entry = ""
        for line in data.decode(errors="replace").splitlines():
            found = _BEGINNING.match(line)
            time_of_entry = found[0] if found else time_of_entry
            entries.append((time_of_entry, name, line))
    entries.sort(key=lambda entry: entry[0])  # stable: lines of one moment stay in the order of their file
    for _, name, line in deque(entries, maxlen=count):
        _print(name, line, labelled=len(files) > 1)
    sys.stdout.flush()
    return ends


def follow_logs(files: Mapping[str, Path], ends: dict[str, int]) -> None:
    """Until Ctrl-C. A file that became shorter was begun anew."""
    pending = dict.fromkeys(files, "")
    while True:
        for name, path in files.items():
            for line in _new_lines(name, path, ends, pending):
                _print(name, line, labelled=len(files) > 1)
        sys.stdout.flush()
        time.sleep(_POLL_S)


def _new_lines(name: str, path: Path, ends: dict[str, int], pending: dict[str, str]) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            if path.stat().st_size < ends[name]:
                ends[name] = 0
            file.seek(ends[name])
            data = file.read(_WINDOW_BYTES)
            ends[name] = file.tell()
    except FileNotFoundError:
        return
    *whole, pending[name] = (pending[name] + data.decode(errors="replace")).split("\n")
    yield from whole


def _print(name: str, line: str, *, labelled: bool) -> None:
    print(f"{name} | {line}" if labelled else line)
