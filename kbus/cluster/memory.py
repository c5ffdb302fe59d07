"""How much memory processes take, from /proc. None where the system does not tell."""

from collections import defaultdict
from pathlib import Path


def memory_bytes(pid: int) -> int | None:
    """The process's own pages and its part of those that it shares: sums over processes are true, where sums
    of resident sizes count a shared page again and again."""
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) * 1024
    return None


def descendants(pid: int) -> list[int]:
    """The process itself, its children, their children and so on."""
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text = entry.read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue  # ended just now
        # The name, in parentheses, may hold spaces and parentheses itself.
        parent = int(text.rpartition(")")[2].split()[1])
        children[parent].append(int(entry.parent.name))
    found = [pid]
    for process in found:
        found += children[process]
    return found


def tree_memory_bytes(pid: int) -> int | None:
    sizes = [size for process in descendants(pid) if (size := memory_bytes(process)) is not None]
    return sum(sizes) if sizes else None
