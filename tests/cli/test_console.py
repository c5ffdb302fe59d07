"""console-produce and console-consume against a real node."""

import array
import fcntl
import itertools
import json
import os
import signal
import subprocess
import termios
import threading
import time
from collections import Counter
from pathlib import Path
from typing import IO, Any

import mmh3
import pytest
from confluent_kafka import Consumer, Message, Producer, TopicPartition, murmur2

from kbus.cli import console_produce
from tests.conftest import NodeFactory
from tests.nodes import NodeProcess

from .running import KBUS, Cli, run

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def current_cluster(node: NodeProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KBUS_BOOTSTRAP_SERVERS", node.bootstrap)


@pytest.fixture
def topic(cli: Cli) -> str:
    return new_topic(cli)


def new_topic(cli: Cli, partitions: int = 1, *configs: str) -> str:
    name = f"console-{next(_numbers)}"
    options = [word for config in configs for word in ("--config", config)]
    assert cli("topic", "create", name, "--partitions", str(partitions), *options).exit_code == 0
    return name


def produce(cli: Cli, topic: str, data: bytes, *options: str) -> str:
    """Sends `data`, everything acknowledged; what the command said."""
    code, out, err = cli("console-produce", topic, *options, input=data)
    assert (code, out) == (0, ""), err
    return err


def consume(cli: Cli, topic: str, *options: str) -> str:
    code, out, err = cli("console-consume", topic, "--from-beginning", "--until-end", *options)
    assert code == 0, err
    return out


def records(cli: Cli, topic: str, *options: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in consume(cli, topic, "--output", "json", *options).splitlines()]


class TestProduce:
    def test_lines_become_records_in_order_and_are_counted(self, cli: Cli, topic: str) -> None:
        lines = [f"line {number}" for number in range(5000)]
        said = produce(cli, topic, "\n".join(lines).encode())
        assert said == "Records: 5,000 sent, 5,000 acknowledged, 0 failed.\n"
        assert consume(cli, topic).splitlines() == lines

    def test_line_ends_and_empty_lines_are_taken_as_kafka_does(self, cli: Cli, topic: str) -> None:
        produce(cli, topic, b"a\r\n\r\nb\n\nc")
        assert [record["value"] for record in records(cli, topic)] == ["a", "", "b", "", "c"]

    def test_files_are_read_one_after_the_other(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        for name in ("one", "two"):
            (tmp_path / name).write_text(f"{name}-1\n{name}-2\n")
        code, _, err = cli("console-produce", "--topic", topic, str(tmp_path / "two"), str(tmp_path / "one"))
        assert code == 0, err
        assert consume(cli, topic).split() == ["two-1", "two-2", "one-1", "one-2"]

    def test_a_missing_file_is_named_and_what_came_before_is_sent(
        self, cli: Cli, topic: str, tmp_path: Path
    ) -> None:
        (tmp_path / "there").write_text("x\n")
        code, _, err = cli("console-produce", topic, str(tmp_path / "there"), str(tmp_path / "missing"))
        assert code == 1
        assert "1 sent, 1 acknowledged" in err
        assert f"{tmp_path / 'missing'}: No such file" in err

    def test_keys_headers_and_nulls_come_from_the_line(self, cli: Cli, topic: str) -> None:
        options = [
            "--property",
            "parse.headers=true",
            "--property",
            "null.marker=NULL",
            "--header",
            "all=same",
        ]
        produce(cli, topic, b"a:1\tk=v\nNULL\tNULL=NULL\n", "--key-separator", "=", *options)
        first, second = records(cli, topic)
        assert (first["key"], first["value"]) == ("k", "v")
        assert first["headers"] == [{"key": "a", "value": "1"}, {"key": "all", "value": "same"}]
        assert (second["key"], second["value"]) == (None, None)
        assert second["headers"] == [{"key": "all", "value": "same"}]

    def test_kafkas_options_and_property_files_are_taken(self, cli: Cli, topic: str, tmp_path: Path) -> None:
        reader, client = tmp_path / "reader.properties", tmp_path / "client.properties"
        reader.write_text("parse.key=true\nkey.separator=|\n")
        client.write_text("linger.ms=1\n")
        options = (
            f"--reader-config {reader} --producer.config {client} --request-required-acks -1 --sync "
            "--compression-codec gzip --batch-size 100 --timeout 5 --request-timeout-ms 5000 "
            "--message-send-max-retries 3 --retry-backoff-ms 100 --metadata-expiry-ms 60000 "
            "--max-memory-bytes 4000000 --max-partition-memory-bytes 1000 --socket-buffer-size 100000"
        )
        produce(cli, topic, b"k|v\n", *options.split())
        formatter = tmp_path / "formatter.properties"
        formatter.write_text("print.key=true\nkey.separator=-\n")
        options = (
            f"--formatter-config {formatter} --isolation-level read_committed "
            "--consumer-property fetch.wait.max.ms=50"
        )
        assert consume(cli, topic, *options.split()) == "k-v\n"

    def test_a_line_that_cannot_be_read_ends_the_input_with_its_number(self, cli: Cli, topic: str) -> None:
        result = cli("console-produce", topic, "--key-separator", ":", input=b"a:1\nb:2\nno key\nc:3\n")
        assert result.exit_code == 1
        assert "2 sent, 2 acknowledged" in result.err
        assert "Line 3 of stdin has no key separator ':'." in result.err
        assert len(records(cli, topic)) == 2

    def test_a_partition_can_be_given(self, cli: Cli) -> None:
        topic = new_topic(cli, 3)
        produce(cli, topic, b"a\nb\n", "--partition", "2")
        assert [record["partition"] for record in records(cli, topic)] == [2, 2]
        result = cli("console-produce", topic, "--partition", "3", input=b"a\n")
        assert result.exit_code == 1
        assert "has no partition 3" in result.err

    @pytest.mark.parametrize("partitioner", ["murmur2", "murmur3"])
    def test_a_hashing_partitioner_goes_by_the_key(self, cli: Cli, partitioner: str) -> None:
        topic = new_topic(cli, 5)
        keys = [f"key-{number}" for number in range(50)]
        lines = "".join(f"{key}:x\n" for key in keys).encode()
        produce(cli, topic, lines, "--key-separator", ":", "--partitioner", partitioner)

        def expected(key: bytes) -> int:
            return murmur2(key, 5) if partitioner == "murmur2" else (mmh3.hash(key) & 0x7FFFFFFF) % 5

        found = {record["key"]: record["partition"] for record in records(cli, topic)}
        assert found == {key: expected(key.encode()) for key in keys}

    def test_round_robin_spreads_evenly_and_sticky_keeps_together(self, cli: Cli) -> None:
        topic = new_topic(cli, 3)
        produce(cli, topic, b"same:x\n" * 30, "--key-separator", ":", "--partitioner", "round-robin")
        assert Counter(record["partition"] for record in records(cli, topic)) == {0: 10, 1: 10, 2: 10}
        topic = new_topic(cli, 3)
        produce(cli, topic, b"x\n" * 30, "--partitioner", "sticky")
        assert len({record["partition"] for record in records(cli, topic)}) == 1

    @pytest.mark.parametrize(
        ("codec", "acks"),
        [("none", "1"), ("none", "all"), ("gzip", "-1"), ("snappy", "1"), ("lz4", "all"), ("zstd", "all")],
    )
    def test_every_codec_and_acknowledgement_works(self, cli: Cli, topic: str, codec: str, acks: str) -> None:
        said = produce(cli, topic, b"payload\n" * 100, "--compression", codec, "--acks", acks)
        assert "100 acknowledged" in said
        assert consume(cli, topic) == "payload\n" * 100

    def test_without_acknowledgements_none_are_claimed(self, cli: Cli, topic: str) -> None:
        assert "none acknowledged, as acks=0" in produce(cli, topic, b"a\n", "--acks", "0")

    def test_the_count_can_be_had_as_json(self, cli: Cli, topic: str) -> None:
        result = cli("console-produce", topic, "--output", "json", input=b"a\nb\n")
        summary = json.loads(result.out)
        assert result.err == ""
        assert summary["seconds"] >= 0
        assert summary | {"seconds": 0} == {
            "sent": 2,
            "acknowledged": 2,
            "failed": 0,
            "unknown": 0,
            "seconds": 0,
        }

    def test_refused_records_are_counted_and_explained(self, cli: Cli) -> None:
        topic = new_topic(cli, 1, "max.message.bytes=300")
        result = cli("console-produce", topic, "--sync", input=b"small\n" + b"x" * 1000 + b"\nsmall\n")
        assert result.exit_code == 1
        assert "3 sent, 2 acknowledged, 1 failed" in result.err
        assert "A record failed: " in result.err
        assert consume(cli, topic) == "small\nsmall\n"

    def test_a_broker_that_creates_topics_creates_a_missing_one(self, cli: Cli) -> None:
        topic = f"console-{next(_numbers)}"
        produce(cli, topic, b"a\n")
        assert consume(cli, topic) == "a\n"

    def test_a_missing_topic_is_named_with_the_next_step(self, cli: Cli, start_node: NodeFactory) -> None:
        node = start_node({"auto.create.topics.enable": "false"})
        code, _, err = cli("console-produce", "missing", "-b", node.bootstrap, input=b"a\n")
        assert code == 1
        assert "Create it with `kbus topic create missing`" in err

    def test_a_line_longer_than_any_record_is_refused_before_it_fills_the_memory(
        self, cli: Cli, topic: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(console_produce, "_MAX_RECORD_BYTES", 1_000_000)
        code, _, err = cli("console-produce", topic, input=b"ok\n" + b"x" * 1_500_000)
        assert code == 1
        assert "1 sent, 1 acknowledged" in err
        assert "A line of stdin is longer than 1000000 bytes." in err


class TestConsume:
    @pytest.fixture
    def filled(self, cli: Cli, node: NodeProcess) -> str:
        """Two partitions: values 0-0 to 0-9 and 1-0 to 1-4, a second apart from 1,000,000 ms on."""
        topic = new_topic(cli, 2)
        producer = Producer({"bootstrap.servers": node.bootstrap})
        for partition, count in ((0, 10), (1, 5)):
            for number in range(count):
                producer.produce(
                    topic, f"{partition}-{number}", partition=partition, timestamp=1_000_000 + 1000 * number
                )
        assert producer.flush(10) == 0
        producer.close()
        return topic

    @pytest.mark.parametrize(
        ("options", "values"),
        [
            (["--offset", "earliest"], ["1-0", "1-1", "1-2", "1-3", "1-4"]),
            (["--offset", "3"], ["1-3", "1-4"]),
            (["--offset", "-2"], ["1-3", "1-4"]),
            (["--offset", "-100"], ["1-0", "1-1", "1-2", "1-3", "1-4"]),
            (["--offset", "@1002500"], ["1-3", "1-4"]),
            (["--offset", "@1970-01-01T00:16:42.5Z"], ["1-3", "1-4"]),
            (["--offset", "@9999999"], []),
            (["--offset", "latest"], []),
            ([], []),
            (["--from-beginning", "--max-messages", "2"], ["1-0", "1-1"]),
            (["--from-beginning", "--max-messages", "0"], []),
        ],
    )
    def test_reading_starts_where_it_is_told(
        self, cli: Cli, filled: str, options: list[str], values: list[str]
    ) -> None:
        code, out, err = cli("console-consume", filled, "--partition", "1", "--until-end", *options)
        assert code == 0, err
        assert out.split() == values
        assert err == f"{len(values)} record{'' if len(values) == 1 else 's'} read.\n"

    def test_all_partitions_are_read_from_the_same_offset_as_far_as_they_have_it(
        self, cli: Cli, filled: str
    ) -> None:
        code, out, _ = cli("console-consume", "--topic", filled, "--offset", "7", "--until-end")
        assert code == 0
        assert out.split() == ["0-7", "0-8", "0-9"]

    def test_an_offset_outside_a_partition_is_named_with_its_bounds(self, cli: Cli, filled: str) -> None:
        code, out, err = cli("console-consume", filled, "--partition", "1", "--offset", "7")
        assert (code, out) == (1, "")
        assert "Offset 7 is not in partition 1" in err
        assert "starts at 0 and ends at 5" in err

    @pytest.mark.parametrize("option", [["--timeout", "0.3"], ["--timeout-ms", "300"]])
    def test_reading_ends_after_a_while_without_records(
        self, cli: Cli, filled: str, option: list[str]
    ) -> None:
        code, out, _ = cli("console-consume", filled, "--from-beginning", *option)
        assert code == 0
        assert len(out.split()) == 15

    def test_a_template_says_what_is_printed(self, cli: Cli, filled: str) -> None:
        options = [
            "--partition",
            "0",
            "-n",
            "1",
            "--format",
            "{topic}/{partition}/{offset} {timestamp} {key}={value}",
        ]
        assert consume(cli, filled, *options) == f"{filled}/0/0 1000000 null=0-0\n"

    def test_kafkas_properties_are_printed_as_kafka_does(self, cli: Cli, filled: str) -> None:
        flags = [
            word for flag in ("partition", "offset", "key") for word in ("--property", f"print.{flag}=true")
        ]
        assert (
            consume(cli, filled, "--partition", "1", "-n", "1", *flags)
            == "Partition:1\tOffset:0\tnull\t1-0\n"
        )

    def test_a_missing_topic_or_partition_is_named(self, cli: Cli, filled: str) -> None:
        code, _, err = cli("console-consume", "no-such-topic", "--timeout", "1")
        assert code == 1
        assert "Topic 'no-such-topic' does not exist" in err
        code, _, err = cli("console-consume", filled, "--partition", "2")
        assert code == 1
        assert "has no partition 2" in err


def test_json_that_was_consumed_is_produced_again_without_loss(cli: Cli, node: NodeProcess) -> None:
    source, target = new_topic(cli, 3), new_topic(cli, 3)
    producer = Producer({"bootstrap.servers": node.bootstrap})
    values = [None, b"", b"text", "ünï\n\"'\\".encode(), bytes(range(256)), b"\xff", b"\xed\xa0\x80"]
    for number, value in enumerate(values):
        for key in (None, b"", b"\xfe", b"key"):
            producer.produce(
                source,
                value,
                key,
                partition=number % 3,
                timestamp=1_600_000_000_000 + number,
                headers=[("h", b"1"), ("h", b"\xff"), ("n", None), ("", b"")],
            )
    assert producer.flush(10) == 0
    producer.close()
    produce(cli, target, consume(cli, source, "--output", "json").encode(), "--input", "json")

    def content(topic: str) -> list[tuple[object, ...]]:
        consumer = Consumer(
            {"bootstrap.servers": node.bootstrap, "group.id": "g", "enable.auto.commit": False}
        )
        consumer.assign([TopicPartition(topic, partition, 0) for partition in range(3)])
        messages: list[Message] = []
        while len(messages) < 4 * len(values):
            messages += consumer.consume(100, 0.1)
        consumer.close()
        return sorted(
            (m.partition(), m.offset(), repr(m.key()), repr(m.value()), m.timestamp(), repr(m.headers()))
            for m in messages
        )

    assert content(target) == content(source)


class TestEnding:
    def test_ctrl_c_ends_a_consumer_quietly_with_all_that_it_read_written(self, cli: Cli, topic: str) -> None:
        produce(cli, topic, b"one\n")
        with subprocess.Popen(
            [*KBUS, "console-consume", topic, "--from-beginning"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert _read_line(process) == b"one\n"  # arrives although the command goes on
            produce(cli, topic, b"two\n")
            assert _read_line(process) == b"two\n"
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (130, b"", b"2 records read.\n")

    def test_a_reader_that_goes_away_ends_a_consumer_quietly(self, cli: Cli, topic: str) -> None:
        produce(cli, topic, b"x\n" * 50_000)
        with subprocess.Popen(
            [*KBUS, "console-consume", topic, "--from-beginning"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert _read_line(process) == b"x\n"
            process.stdout.close()
            assert process.wait(30) == 141
            assert process.stderr.read() == b""

    @pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
    def test_a_signal_ends_a_producer_with_what_was_sent_acknowledged(
        self, cli: Cli, topic: str, number: signal.Signals
    ) -> None:
        with subprocess.Popen(
            # Without the signal, nothing would leave for a minute.
            [*KBUS, "console-produce", topic, "--producer-property", "linger.ms=60000"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        ) as process:
            assert process.stdin is not None
            assert process.stderr is not None
            for line in (b"first\n", b"second\n", b"half a li"):
                process.stdin.write(line)
                process.stdin.flush()
                _wait_until_read(process.stdin)
            # It has read on, so the lines before are sent.
            process.send_signal(number)
            assert process.wait(30) == 128 + number
            assert process.stderr.read() == b"Records: 2 sent, 2 acknowledged, 0 failed.\n"
        assert consume(cli, topic) == "first\nsecond\n"

    def test_a_broker_that_is_gone_leaves_an_honest_count(self, start_node: NodeFactory, cli: Cli) -> None:
        node = start_node()
        name = f"console-{next(_numbers)}"
        environment = {"KBUS_BOOTSTRAP_SERVERS": node.bootstrap}
        assert run("topic", "create", name, env=environment).exit_code == 0
        with subprocess.Popen(
            [*KBUS, "console-produce", name, "--producer-property", "message.timeout.ms=1500"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **environment},
        ) as process:
            assert process.stdin is not None
            process.stdin.write(b"kept\n")
            process.stdin.flush()
            wait = run(
                "console-consume", name, "--from-beginning", "-n", "1", "--timeout", "30", env=environment
            )
            assert wait.out == "kept\n"
            node.kill()
            _, err = process.communicate(b"lost\n", timeout=60)
        assert process.returncode == 1
        assert b"2 sent, 1 acknowledged, 1 failed" in err


def _read_line(process: "subprocess.Popen[bytes]") -> bytes:
    """The next line of its output; nothing if it does not come in time."""
    assert process.stdout is not None
    watchdog = threading.Timer(30, process.kill)
    watchdog.start()
    try:
        return process.stdout.readline()
    finally:
        watchdog.cancel()


def _wait_until_read(pipe: IO[bytes]) -> None:
    """Until whoever has the other end has taken everything that was written."""
    waiting = array.array("i", [1])
    deadline = time.monotonic() + 30
    while waiting[0]:
        assert time.monotonic() < deadline
        time.sleep(0.005)
        fcntl.ioctl(pipe.fileno(), termios.FIONREAD, waiting)
