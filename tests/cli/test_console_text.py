"""What console-produce reads and console-consume writes, without a broker."""

import json
from typing import Any

import pytest
import typer
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message
from hypothesis import given, settings
from hypothesis import strategies as st

from kbus.cli.console_record import ConsoleRecord, InputError, from_json, to_json
from kbus.cli.line_parser import line_parser, unescape
from kbus.cli.record_format import formatter
from kbus.cli.start_offset import Start, StartOffset, parse_start
from kbus.client.partitioner import Murmur3, RoundRobin, Sticky, murmur3_partition

from .running import Cli

data = st.none() | st.binary(max_size=40) | st.text(max_size=20).map(str.encode)


def message(**fields: Any) -> Message:
    defaults = {
        "topic": "t",
        "partition": 3,
        "offset": 17,
        "key": b"k",
        "value": b"v",
        "headers": [],
        "timestamp": (TIMESTAMP_CREATE_TIME, 1_700_000_000_123),
    }
    return Message(**{**defaults, **fields})


class TestJson:
    @settings(deadline=None)
    @given(
        key=data,
        value=data,
        headers=st.lists(st.tuples(st.text(max_size=10), data), max_size=3),
        timestamp_ms=st.integers(0, 2**62),
    )
    def test_what_the_consumer_writes_the_producer_takes_back_unchanged(
        self,
        key: bytes | None,
        value: bytes | None,
        headers: list[tuple[str, bytes | None]],
        timestamp_ms: int,
    ) -> None:
        line = to_json(
            message(key=key, value=value, headers=headers, timestamp=(TIMESTAMP_CREATE_TIME, timestamp_ms))
        )
        assert b"\n" not in line
        assert from_json(line) == ConsoleRecord(key, value, headers, 3, timestamp_ms)

    def test_text_stays_readable_and_other_bytes_are_base64(self) -> None:
        fields = json.loads(to_json(message(key="schlüssel".encode(), value=b"\xff\x00")))
        assert fields["key"] == "schlüssel"
        assert fields["value_base64"] == "/wA="
        assert "value" not in fields

    def test_a_record_without_a_timestamp_gets_none_when_it_is_sent_again(self) -> None:
        line = to_json(message(timestamp=(TIMESTAMP_NOT_AVAILABLE, -1)))
        assert from_json(line).timestamp_ms is None

    def test_values_that_are_not_text_keep_their_json_form(self) -> None:
        assert from_json(b'{"value": {"a": [1, "\xc3\xa4"]}}').value == '{"a":[1,"ä"]}'.encode()
        assert from_json(b'{"value": null}') == ConsoleRecord(None, None, [])

    def test_headers_may_be_an_object(self) -> None:
        record = from_json(b'{"value": "v", "headers": {"a": "1", "b": null}}')
        assert record.headers == [("a", b"1"), ("b", None)]

    @pytest.mark.parametrize(
        ("line", "says"),
        [
            (b"{", "is not JSON"),
            (b'"x"', "not a JSON object"),
            (b"{}", 'has no "value"'),
            (b'{"key": "k"}', 'has no "value"'),
            (b'{"vlaue": "x", "value": "y"}', "unknown field 'vlaue'"),
            (b'{"value": "x", "value_base64": "eA=="}', "has both"),
            (b'{"value_base64": "?"}', "not base64"),
            (b'{"value_base64": 5}', "not base64"),
            (b'{"value": "x", "partition": "1"}', '"partition"'),
            (b'{"value": "x", "timestamp": true}', '"timestamp"'),
            (b'{"value": "x", "headers": [["a", "b"]]}', "header"),
            (b'{"value": "x", "headers": "a"}', "neither a list nor an object"),
            (b'{"value": "\\ud800"}', "surrogate"),
            (b"\xff", "is not JSON"),
        ],
    )
    def test_a_line_that_is_no_record_says_why(self, line: bytes, says: str) -> None:
        with pytest.raises(InputError, match=says.replace("?", r"\?")):
            from_json(line)


class TestLines:
    def test_a_line_is_a_value(self) -> None:
        assert line_parser({}).parse(b"a\tb\xff") == ConsoleRecord(None, b"a\tb\xff", [])

    def test_a_key_separator_takes_the_key_from_the_start(self) -> None:
        parser = line_parser({}, key_separator=":")
        assert parser.parse(b"k:v:w") == ConsoleRecord(b"k", b"v:w", [])
        assert parser.parse(b":v").key == b""

    def test_kafkas_properties_work(self) -> None:
        parser = line_parser({"parse.key": "true", "parse.headers": "true", "null.marker": "NULL"})
        assert parser.parse(b"a:1,b:NULL\tk\tv") == ConsoleRecord(b"k", b"v", [("a", b"1"), ("b", None)])
        assert parser.parse(b"NULL\tNULL\tNULL") == ConsoleRecord(None, None, [])

    def test_separators_may_be_longer_than_a_character_and_escaped(self) -> None:
        parser = line_parser(
            {
                "parse.headers": "true",
                "headers.delimiter": "\\t\\t",
                "headers.separator": ";;",
                "headers.key.separator": "=>",
            },
            key_separator="||",
        )
        assert parser.parse(b"a=>1;;b=>2\t\tk||v") == ConsoleRecord(b"k", b"v", [("a", b"1"), ("b", b"2")])

    @pytest.mark.parametrize(
        ("properties", "line", "says"),
        [
            ({"parse.key": "true"}, b"no separator", "has no key separator"),
            ({"parse.headers": "true"}, b"a:1", "has no headers delimiter"),
            ({"parse.headers": "true"}, b"a\tv", "header 'a' without ':'"),
            ({"parse.headers": "true", "null.marker": "N"}, b"N:1\tv", "names cannot be null"),
            ({"parse.headers": "true"}, b"\xff:1\tv", "not UTF-8"),
        ],
    )
    def test_a_malformed_line_says_why(self, properties: dict[str, str], line: bytes, says: str) -> None:
        with pytest.raises(InputError, match=says):
            line_parser(properties).parse(line)

    def test_errors_can_be_ignored_as_in_kafka(self) -> None:
        parser = line_parser({"parse.key": "true", "parse.headers": "true", "ignore.error": "true"})
        assert parser.parse(b"plain") == ConsoleRecord(None, b"plain", [])
        assert parser.parse(b"h\tplain") == ConsoleRecord(None, b"plain", [("h", None)])

    @pytest.mark.parametrize(
        "properties",
        [
            {"parse.kye": "true"},
            {"parse.key": "yes"},
            {"key.separator": ""},
            {"headers.separator": ":"},
            {"null.marker": ","},
        ],
    )
    def test_contradictory_properties_are_bad_usage(self, properties: dict[str, str]) -> None:
        with pytest.raises(typer.BadParameter):
            line_parser(properties)

    @settings(deadline=None)
    @given(st.text(alphabet="\\tnr0x"))
    def test_unescaping_leaves_what_it_does_not_know(self, text: str) -> None:
        assert unescape(text.replace("\\", "\\\\")) == text


class TestFormat:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("{partition}/{offset} {key}={value}", b"3/17 k=v\n"),
            (r"{topic}\t{timestamp}\t{time}", b"t\t1700000000123\t2023-11-14T22:13:20.123Z\n"),
            ("{{{value}}}", b"{v}\n"),
            ("{headers}", b"a:1,b:null\n"),
            ("plain", b"plain\n"),
        ],
    )
    def test_a_template_is_filled(self, template: str, expected: bytes) -> None:
        assert formatter(template, {})(message(headers=[("a", b"1"), ("b", None)])) == expected

    @pytest.mark.parametrize("template", ["{keys}", "{key", "}", "{}"])
    def test_a_wrong_template_is_bad_usage(self, template: str) -> None:
        with pytest.raises(typer.BadParameter):
            formatter(template, {})

    def test_by_default_the_value_is_printed_and_nothing_else(self) -> None:
        assert formatter(None, {})(message(value=b"\xff")) == b"\xff\n"
        assert formatter(None, {"null.literal": "NIL"})(message(value=None)) == b"NIL\n"

    def test_kafkas_properties_print_as_kafka_does(self) -> None:
        flags = ("timestamp", "partition", "offset", "headers", "key", "value")
        everything = formatter(None, {f"print.{flag}": "true" for flag in flags})
        assert (
            everything(message()) == b"CreateTime:1700000000123\tPartition:3\tOffset:17\tNO_HEADERS\tk\tv\n"
        )
        keys = formatter(None, {"print.key": "true", "print.value": "false", "line.separator": "|"})
        assert keys(message()) == b"k|"
        assert formatter(None, {"print.key": "true", "key.separator": " -> "})(message()) == b"k -> v\n"


class TestStart:
    @pytest.mark.parametrize(
        ("text", "start"),
        [
            ("earliest", StartOffset(Start.EARLIEST)),
            ("LATEST", StartOffset(Start.LATEST)),
            ("42", StartOffset(Start.OFFSET, 42)),
            ("-5", StartOffset(Start.FROM_END, 5)),
            ("@1700000000123", StartOffset(Start.TIME, 1_700_000_000_123)),
            ("@2023-11-14T22:13:20.123Z", StartOffset(Start.TIME, 1_700_000_000_123)),
            ("@2023-11-14T23:13:20.123+01:00", StartOffset(Start.TIME, 1_700_000_000_123)),
            ("@2023-11-14T22:13:20.123", StartOffset(Start.TIME, 1_700_000_000_123)),
        ],
    )
    def test_ways_to_say_where(self, text: str, start: StartOffset) -> None:
        assert parse_start(text) == start

    @pytest.mark.parametrize("text", ["", "first", "1.5", "--1", "@", "@yesterday"])
    def test_anything_else_is_bad_usage(self, text: str) -> None:
        with pytest.raises(typer.BadParameter):
            parse_start(text)


class TestPartitioners:
    def test_murmur3_is_the_same_everywhere_and_never_negative(self) -> None:
        # The hashes are murmur3's published test vectors: "" is 0, "hello" 0x248bfa47.
        assert murmur3_partition(b"", 7) == 0
        assert murmur3_partition(b"hello", 1000) == 0x248BFA47 % 1000
        assert all(0 <= murmur3_partition(bytes([n]), 5) < 5 for n in range(256))

    def test_murmur3_keeps_a_key_on_its_partition_and_goes_round_without(self) -> None:
        partitioner = Murmur3([0, 1, 2])
        assert [partitioner.choose(None, 1) for _ in range(4)] == [0, 1, 2, 0]
        assert partitioner.choose(b"k", 1) == partitioner.choose(b"k", 1)

    def test_round_robin_ignores_keys(self) -> None:
        partitioner = RoundRobin([0, 1])
        assert [partitioner.choose(b"k", 1) for _ in range(4)] == [0, 1, 0, 1]

    def test_sticky_moves_on_after_a_batch(self) -> None:
        partitioner = Sticky([0, 1], 100)
        assert [partitioner.choose(None, 50) for _ in range(6)] == [0, 0, 1, 1, 0, 0]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["console-produce"], "name a topic"),
        (["console-produce", "t", "--partition", "-1"], "--partition"),
        (["console-produce", "t", "--acks", "2"], "--acks"),
        (["console-produce", "t", "--compression", "rar"], "--compression"),
        (["console-produce", "t", "--partitioner", "fnv"], "--partitioner"),
        (["console-produce", "t", "--header", "x"], "name=value"),
        (["console-produce", "t", "--input", "json", "--key-separator", ":"], "leave out"),
        (["console-consume"], "name a topic"),
        (["console-consume", "t", "--offset", "x"], "--offset"),
        (["console-consume", "t", "--offset", "1", "--from-beginning"], "give one"),
        (["console-consume", "t", "--format", "{x}"], "is not a field"),
        (["console-consume", "t", "--output", "json", "--format", "{key}"], "leave out"),
        (["console-consume", "t", "--format", "{key}", "--property", "print.key=true"], "leave out"),
        (["console-consume", "t", "--property", "print.all=true"], "is not known"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_connected(cli: Cli, command: list[str], says: str) -> None:
    code, out, err = cli(*command)
    assert (code, out) == (2, "")
    assert says in err
