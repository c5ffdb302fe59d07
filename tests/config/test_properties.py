"""The .properties format is Java's."""

from pathlib import Path

import pytest

from kbus.config import ConfigError
from kbus.config.properties import load_properties, parse_properties


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", {"a": "1"}),
        ("a:1", {"a": "1"}),
        ("a 1", {"a": "1"}),
        ("a\t=  1", {"a": "1"}),
        ("   a = b = c", {"a": "b = c"}),
        ("a==b", {"a": "=b"}),
        ("a", {"a": ""}),
        ("a=", {"a": ""}),
        ("=v", {"": "v"}),
        ("a=trailing ", {"a": "trailing "}),
        ("# no\n! no\n  # no\n\na=1", {"a": "1"}),
        ("a=#1", {"a": "#1"}),
        ("a=1\na=2", {"a": "2"}),
        ("a=1\r\nb=2\rc=3\n", {"a": "1", "b": "2", "c": "3"}),
        ("a=x,\\\n   y", {"a": "x,y"}),
        ("a=x\\\\\nb=1", {"a": "x\\", "b": "1"}),
        ("a=x\\\n# part of it", {"a": "x# part of it"}),
        ("# comments do not continue \\\na=1", {"a": "1"}),
        ("a=x\\\n\nb=1", {"a": "x", "b": "1"}),
        ("a=end\\", {"a": "end"}),
        ("a\\ b\\=c\\:d=1", {"a b=c:d": "1"}),
        ("a=\\t\\n\\r\\f\\q\\\\", {"a": "\t\n\r\fq\\"}),
        ("a=caf\\u00e9", {"a": "café"}),
        ("a=\\ud83d\\ude00", {"a": "😀"}),
        ("a=C:\\\\logs", {"a": "C:\\logs"}),
        ("", {}),
    ],
)
def test_properties_are_read_as_java_reads_them(text: str, expected: dict[str, str]) -> None:
    assert parse_properties(text) == expected


def test_a_broken_escape_names_its_file_and_line(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    path.write_text("a=1\nb=2 \\\n 3\nc=\\u12x4\n")
    with pytest.raises(ConfigError, match=r"server\.properties: line 4: \\u must be followed by four"):
        load_properties(path)


def test_a_missing_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"Cannot read .*nowhere\.properties: No such file or directory\.$"):
        load_properties(tmp_path / "nowhere.properties")


def test_files_in_utf8_and_in_javas_latin1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "server.properties"
    for encoding in ("utf-8", "utf-8-sig", "latin-1"):
        path.write_bytes("broker.rack=Zürich".encode(encoding))
        assert load_properties(path) == {"broker.rack": "Zürich"}
