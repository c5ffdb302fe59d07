import contextlib
import json
import os
import shutil
import struct
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from aiokafka.record.legacy_records import LegacyRecordBatchBuilder
from hypothesis import given, settings
from hypothesis import strategies as st

from kbus.cli.output import CliError
from kbus.cli.segment_dump import batches, index_entries, partition_index_files
from kbus.cli.segment_files import find
from kbus.cli.segment_list import summarize
from kbus.cli.segment_verify import PartitionVerifier
from kbus.client.local_cluster import LocalCluster, write_cluster
from kbus.records.batch import HEADER_SIZE, read_header, write_header
from kbus.records.control import ControlType, EndTransactionMarker, encode_marker_batch
from kbus.records.crc import seal
from kbus.records.record import Record, encode_batch
from kbus.types import LeaderEpoch, Offset, ProducerEpoch, ProducerId

from .logs import NOW_MS, SEGMENT, batch, open_log, patch, write_log, write_segment
from .running import Cli

BATCH_BYTES = len(batch(0))


def old_messages(magic: int) -> bytes:
    """Two messages as clients sent them before Kafka 0.11."""
    builder = LegacyRecordBatchBuilder(magic=magic, compression_type=0, batch_size=10_000)
    for offset in range(2):
        builder.append(offset, timestamp=NOW_MS, key=b"k", value=b"v" * 50)
    return bytes(builder.build())


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "data" / "events-0")


def verify(cli: Cli, *targets: Path | str, deep: bool = False) -> tuple[int, Any]:
    options = ["--deep"] if deep else []
    code, out, _ = cli("segment", "verify", *map(str, targets), *options, "--output", "json")
    return code, json.loads(out)


def lines(out: str) -> list[Any]:
    return [json.loads(line) for line in out.splitlines()]


class TestList:
    def test_segments_are_listed_with_offsets_times_and_sizes(self, cli: Cli, log: Path) -> None:
        code, out, _ = cli("segment", "list", str(log), "-o", "json")
        segments = json.loads(out)
        assert code == 0
        assert len(segments) == len(list(log.glob("*.log"))) > 2
        assert segments[0]["first_offset"] == 0
        assert segments[-1]["last_offset"] == 119
        for one, following in pairwise(segments):
            assert one["last_offset"] + 1 == following["first_offset"] == following["base_offset"]
            assert one["state"] == "closed"
        assert segments[-1]["state"] == "active"
        assert segments[0]["first_timestamp"] == NOW_MS
        assert segments[-1]["max_timestamp"] == NOW_MS + 119
        assert sum(segment["log_bytes"] for segment in segments) == sum(
            path.stat().st_size for path in log.glob("*.log")
        )

    def test_the_table_has_a_line_a_segment(self, cli: Cli, log: Path) -> None:
        code, out, _ = cli("segment", "list", str(log))
        assert code == 0
        assert out.count("events-0") == len(list(log.glob("*.log")))
        assert "2023-11-14T22:13:20.000Z" in out

    @pytest.mark.parametrize("depth", ["log directory", "folder", "file"])
    def test_a_directory_a_folder_and_a_file_can_be_named(self, cli: Cli, log: Path, depth: str) -> None:
        path = {"log directory": log.parent, "folder": log, "file": log / f"{SEGMENT}.log"}[depth]
        code, out, _ = cli("segment", "list", str(path), "-o", "json")
        assert code == 0
        assert json.loads(out)[0]["partition"] == "events-0"
        assert (len(json.loads(out)) == 1) == (depth == "file")

    def test_the_current_cluster_is_looked_into_by_topic_and_partition(self, cli: Cli, log: Path) -> None:
        shutil.copytree(log, log.parent / "events-1")
        shutil.copytree(log, log.parent / "other-0")
        write_cluster(
            LocalCluster(
                folder=log.parent.parent, bootstrap_servers="b:1", zookeeper="z:1", log_dirs=(log.parent,)
            )
        )

        def partitions(*targets: str) -> set[str]:
            return {s["partition"] for s in json.loads(cli("segment", "list", *targets, "-o", "json").out)}

        assert partitions("events") == {"events-0", "events-1"}
        assert partitions("events:1") == {"events-1"}
        assert partitions() == {"events-0", "events-1", "other-0"}
        code, _, err = cli("segment", "list", "missing:3")
        assert code == 1
        assert "no partition 3 of topic 'missing'" in err

    def test_indexes_that_do_not_fit_are_not_believed(self, cli: Cli, log: Path) -> None:
        for index in (*log.glob("*.index"), *log.glob("*.timeindex")):
            index.write_bytes(b"\x01\x02\x03\x04" * 6)
        _, out, _ = cli("segment", "list", str(log), "-o", "json")
        assert json.loads(out)[-1]["last_offset"] == 119


class TestDump:
    def test_batches_have_all_fields_of_their_headers(self, cli: Cli, log: Path) -> None:
        code, out, _ = cli("segment", "dump", str(log), "-o", "json")
        batches = lines(out)
        assert code == 0
        assert [b["base_offset"] for b in batches] == list(range(0, 120, 3))
        assert batches[4] | {"position": 0, "crc": "", "size": 0} == {
            "file": str(log / f"{SEGMENT}.log"),
            "position": 0,
            "size": 0,
            "base_offset": 12,
            "last_offset": 14,
            "record_count": 3,
            "leader_epoch": 0,
            "magic": 2,
            "crc": "",
            "crc_ok": True,
            "compression": "zstd",
            "timestamp_type": "create_time",
            "base_timestamp": NOW_MS + 12,
            "max_timestamp": NOW_MS + 14,
            "producer_id": 7,
            "producer_epoch": 0,
            "base_sequence": 12,
            "last_sequence": 14,
            "is_transactional": False,
            "is_control": False,
            "has_delete_horizon": False,
        }

    def test_records_are_shown_on_request_whatever_their_codec(self, cli: Cli, log: Path) -> None:
        _, out, _ = cli("segment", "dump", str(log), "--records", "-o", "json")
        records = [record for b in lines(out) for record in b["records"]]
        assert [record["offset"] for record in records] == list(range(120))
        assert records[30] == {
            "offset": 30,
            "timestamp": NOW_MS + 30,
            "key": "k30",
            "value": "E" * 40,
            "headers": [{"key": "h", "value": "x"}],
        }

    def test_a_dump_starts_at_an_offset_and_ends_after_the_limit(self, cli: Cli, log: Path) -> None:
        _, out, _ = cli("segment", "dump", str(log), "--offset", "50", "--max", "2", "-o", "json")
        assert [b["base_offset"] for b in lines(out)] == [48, 51]

    def test_the_text_has_a_heading_a_file_and_a_line_a_batch(self, cli: Cli, log: Path) -> None:
        code, out, _ = cli("segment", "dump", str(log / f"{SEGMENT}.log"), "--records", "-n", "3")
        assert code == 0
        assert out.startswith(str(log / f"{SEGMENT}.log\n"))
        assert "snappy" in out
        assert "AAAAAAAA" in out
        assert "h=x" in out

    def test_index_entries_snapshots_and_epochs_are_shown_on_request(self, cli: Cli, log: Path) -> None:
        code, out, _ = cli("segment", "dump", "--index", str(log), "-o", "json")
        rows = lines(out)
        assert code == 0
        by_suffix = {
            suffix: [r for r in rows if r["file"].endswith(suffix)] for suffix in (".index", ".timeindex")
        }
        assert by_suffix[".index"]
        assert all(row["offset"] % 3 == 2 for row in by_suffix[".index"])
        assert all(row["timestamp"] == NOW_MS + row["offset"] for row in by_suffix[".timeindex"])
        epochs = str(log / "leader-epoch-checkpoint")
        assert [row for row in rows if row["file"] == epochs] == [
            {"file": epochs, "epoch": 0, "start_offset": 0},
            {"file": epochs, "epoch": 1, "start_offset": 60},
        ]
        snapshots = [row for row in rows if row["file"].endswith(".snapshot")]
        assert snapshots[-1]["producer_id"] == 7
        assert snapshots[-1]["last_sequence"] == 119

    def test_an_index_file_can_be_named_by_itself_even_without_its_log(
        self, cli: Cli, log: Path, tmp_path: Path
    ) -> None:
        alone = tmp_path / f"{SEGMENT}.index"
        shutil.copy(log / f"{SEGMENT}.index", alone)
        code, out, _ = cli("segment", "dump", str(alone))
        assert code == 0
        assert "POSITION" in out

    def test_the_preallocated_end_of_a_live_index_is_not_shown(self, cli: Cli, tmp_path: Path) -> None:
        folder = write_log(tmp_path / "live-0", segment_bytes=100_000)
        before = cli("segment", "dump", "--index", str(folder)).out
        for suffix in (".index", ".timeindex"):
            os.truncate(folder / f"{SEGMENT}{suffix}", 12_000)
        assert cli("segment", "dump", "--index", str(folder)).out == before
        assert verify(cli, folder)[0] == 0

    def test_control_batches_say_what_they_are(self, cli: Cli, tmp_path: Path) -> None:
        marker = encode_marker_batch(
            EndTransactionMarker(ControlType.ABORT, 3),
            producer_id=ProducerId(9),
            producer_epoch=ProducerEpoch(1),
            timestamp_ms=NOW_MS,
            base_offset=Offset(3),
            leader_epoch=LeaderEpoch(0),
        )
        path = write_segment(tmp_path / "tx-0", [batch(0), marker])
        _, out, _ = cli("segment", "dump", str(path), "-r", "-o", "json")
        assert lines(out)[1]["is_control"]
        assert lines(out)[1]["records"][0]["control_type"] == "abort"

    def test_a_batch_with_a_wrong_crc_is_shown_and_fails_the_command(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "bad-0", [batch(0), batch(3)])
        patch(path, 100, b"\xff")
        code, out, _ = cli("segment", "dump", str(path), "-r")
        assert code == 1
        assert "CRC DOES NOT MATCH" in out

    def test_bytes_are_printed_on_one_line_whatever_they_are(self, cli: Cli, tmp_path: Path) -> None:
        values = (b"line\nbreak\x1b[31m", b"\xff\xfe", None, "ä".encode())
        data = encode_batch([Record(Offset(i), NOW_MS, None, value) for i, value in enumerate(values)])
        path = write_segment(tmp_path / "x-0", [data])
        _, out, _ = cli("segment", "dump", str(path), "-r")
        assert len(out.splitlines()) == 3 + 1 + len(values)
        assert r"line\nbreak\x1b[31m" in out
        assert "base64://4=" in out
        assert "ä" in out


class TestVerify:
    def test_what_the_storage_engine_writes_is_sound(self, cli: Cli, log: Path) -> None:
        code, report = verify(cli, log, deep=True)
        assert (code, report["problems"]) == (0, [])
        assert report["sound"]
        assert {segment["state"] for segment in report["segments"]} == {"sound"}
        assert sum(segment["records"] for segment in report["segments"]) == 120

    def test_a_log_that_is_open_and_growing_is_sound(self, cli: Cli, tmp_path: Path) -> None:
        folder = write_log(tmp_path / "live-0", segment_bytes=100_000)
        live = open_log(folder, segment_bytes=100_000)
        for _ in range(20):
            live.append_as_leader(batch(0), leader_epoch=LeaderEpoch(1))
        code, report = verify(cli, folder)
        live.close()
        assert (code, report["problems"]) == (0, [])
        assert report["segments"][-1]["last_offset"] == 179

    def test_files_named_otherwise_can_be_verified(self, cli: Cli, log: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy.log"
        shutil.copy(sorted(log.glob("*.log"))[1], copy)
        code, report = verify(cli, copy)
        assert (code, report["problems"]) == (0, [])
        assert report["segments"][0]["batches"] > 0

    @pytest.mark.parametrize("cut", [1, 30, 61, 100])
    def test_a_torn_tail_is_reported_as_such_not_as_damage(self, cli: Cli, tmp_path: Path, cut: int) -> None:
        whole = batch(6)
        path = write_segment(tmp_path / "torn-0", [batch(0), batch(3)])
        position = path.stat().st_size
        path.write_bytes(path.read_bytes() + whole[:cut])
        code, report = verify(cli, path)
        assert (code, report["problems"]) == (0, [])
        assert report["segments"][0]["state"] == "torn tail"
        assert f"from byte {position}" in report["segments"][0]["notes"][0]
        assert report["segments"][0]["last_offset"] == 5

    def test_zeros_that_were_never_written_over_are_a_torn_tail(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "torn-0", [batch(0)])
        path.write_bytes(path.read_bytes() + b"\0" * 5000)
        code, report = verify(cli, path)
        assert code == 0
        assert report["segments"][0]["state"] == "torn tail"

    def test_a_cut_segment_that_is_not_the_last_is_damaged(self, cli: Cli, log: Path) -> None:
        first = log / f"{SEGMENT}.log"
        size = first.stat().st_size
        with first.open("r+b") as file:
            file.truncate(size - 5)
        code, report = verify(cli, log)
        assert code == 1
        assert report["problems"][0]["file"] == str(first)
        assert report["segments"][0]["state"] == "damaged"

    def test_a_length_that_hides_good_batches_is_damage_at_the_end_too(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        path = write_segment(tmp_path / "len-0", [batch(0), batch(3), batch(6)])
        position = len(batch(0))
        patch(path, position + 8, struct.pack(">i", 100_000))
        code, report = verify(cli, path)
        assert code == 1
        assert (report["problems"][0]["position"], report["problems"][0]["offset"]) == (position, 3)
        assert "another one begins" in report["problems"][0]["problem"]

    @pytest.mark.parametrize(
        ("at", "data", "says"),
        [
            (61 + 20, b"\xff", "CRC"),
            (17, b"\0\0\0\0", "CRC"),
            (23, b"\0\0\x10\0", "CRC"),
            (16, b"\x4d", "magic 77"),
            (8, struct.pack(">i", 7), "length 7"),
            (8, struct.pack(">i", -1), "length -1"),
            (0, struct.pack(">q", 1), "which was to follow"),
            (12, struct.pack(">i", -1), None),
        ],
        ids=["value", "crc", "delta", "magic", "short", "negative", "offset", "no epoch"],
    )
    def test_damage_is_found_with_file_position_and_offset(
        self, cli: Cli, tmp_path: Path, at: int, data: bytes, says: str | None
    ) -> None:
        path = write_segment(tmp_path / "bad-0", [batch(0), batch(3), batch(6)])
        position = len(batch(0))
        patch(path, position + at, data)
        code, report = verify(cli, path)
        if says is None:
            assert code == 0
            return
        assert code == 1
        assert not report["sound"]
        problem = report["problems"][0]
        assert (problem["file"], problem["position"]) == (str(path), position)
        assert problem["offset"] in (3, 1)
        assert says in problem["problem"]

    def test_one_damaged_batch_does_not_hide_the_next(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "bad-0", [batch(0), batch(3), batch(6), batch(9)])
        size = len(batch(0))
        patch(path, size + 80, b"\xff")
        patch(path, 3 * size + 80, b"\xff")
        _, report = verify(cli, path)
        assert [(p["position"], p["offset"]) for p in report["problems"]] == [(size, 3), (3 * size, 9)]

    def test_leader_epochs_must_not_fall(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "ep-0", [batch(0, epoch=5), batch(3, epoch=4)])
        code, report = verify(cli, path)
        assert code == 1
        assert report["problems"][0]["problem"] == "leader epoch 4 follows 5"

    @pytest.mark.parametrize(
        ("content", "says"),
        [
            ("0\n2\n0 0\n1 63\n", "the log has epoch 1 there; the file starts it at 63"),
            ("0\n1\n0 0\n", "the file lacks it"),
            ("0\n2\n1 60\n0 0\n", "out of order"),
            ("0\n3\n0 0\n", "announces 3"),
            ("x\n", "does not begin"),
        ],
    )
    def test_the_epoch_checkpoint_must_agree_with_the_log(
        self, cli: Cli, log: Path, content: str, says: str
    ) -> None:
        (log / "leader-epoch-checkpoint").write_text(content)
        code, report = verify(cli, log)
        assert code == 1
        assert says in report["problems"][0]["problem"]
        assert report["problems"][0]["file"].endswith("leader-epoch-checkpoint")

    @pytest.mark.parametrize(
        ("suffix", "entry", "says"),
        [
            (".index", struct.pack(">ii", 5, 10), "where no batch begins"),
            (".index", struct.pack(">ii", 2, -1), "where no batch begins"),
            (".index", struct.pack(">ii", 4, BATCH_BYTES), "at which no batch ends"),
            (".index", struct.pack(">ii", 0, BATCH_BYTES), "where offset 3 begins"),
            (".timeindex", struct.pack(">qi", NOW_MS + 4, 5), "the batch there has"),
            (".timeindex", struct.pack(">qi", NOW_MS + 5, 700), "does not lie above"),
        ],
    )
    def test_an_index_entry_must_fit_its_batch(
        self, cli: Cli, tmp_path: Path, suffix: str, entry: bytes, says: str
    ) -> None:
        path = write_segment(tmp_path / "ix-0", [batch(0), batch(3), batch(6)])
        patch(path.with_suffix(suffix), 0, entry)
        code, report = verify(cli, path)
        assert code == 1
        assert any(says in problem["problem"] for problem in report["problems"])
        assert all(problem["file"] == str(path.with_suffix(suffix)) for problem in report["problems"])

    def test_an_index_must_not_reach_beyond_the_log(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "ix-0", [batch(0), batch(3), batch(6)])
        path.write_bytes(batch(0) + batch(3))
        code, report = verify(cli, path)
        assert code == 1
        assert {Path(problem["file"]).suffix for problem in report["problems"]} == {".index", ".timeindex"}

    def test_an_index_of_half_an_entry_is_damaged(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "ix-0", [batch(0), batch(3)])
        path.with_suffix(".index").write_bytes(b"\0\0\0\x05\0\0\x01")
        code, report = verify(cli, path)
        assert code == 1
        assert "multiple" in report["problems"][0]["problem"]

    def test_a_missing_index_is_worth_a_note_only(self, cli: Cli, log: Path) -> None:
        (log / f"{SEGMENT}.index").unlink()
        code, report = verify(cli, log)
        assert code == 0
        assert "is missing" in report["segments"][0]["notes"][0]

    def test_a_snapshot_must_match_its_checksum(self, cli: Cli, log: Path) -> None:
        snapshot = sorted(log.glob("*.snapshot"))[-1]
        patch(snapshot, 20, b"\xff")
        code, report = verify(cli, log)
        assert code == 1
        assert report["problems"][0]["file"] == str(snapshot)

    def test_damaged_records_with_a_right_crc_are_found_by_a_deep_check(
        self, cli: Cli, tmp_path: Path
    ) -> None:
        good = batch(0)
        payload = bytearray(good[HEADER_SIZE:])
        payload[0] = 0x7F
        bad = write_header(seal(read_header(good), bytes(payload))) + payload
        path = write_segment(tmp_path / "deep-0", [bytes(bad)])
        assert verify(cli, path)[0] == 0
        code, report = verify(cli, path, deep=True)
        assert code == 1
        assert "cannot be read" in report["problems"][0]["problem"]

    @pytest.mark.parametrize("magic", [0, 1])
    def test_old_formats_are_reported_as_unsupported(self, cli: Cli, tmp_path: Path, magic: int) -> None:
        path = write_segment(tmp_path / "old-0", [])
        path.write_bytes(old_messages(magic) + batch(2))
        code, report = verify(cli, path)
        assert (code, report["problems"]) == (0, [])
        assert report["segments"][0]["state"] == "old format"
        code, out, _ = cli("segment", "dump", str(path), "-o", "json")
        assert "older than v2" in lines(out)[0]["problem"]
        assert [row["base_offset"] for row in lines(out)] == [0, 1, 2]

    def test_a_damaged_magic_is_not_taken_for_an_old_format(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "bad-0", [batch(0), batch(3)])
        patch(path, 16, b"\0")
        assert verify(cli, path)[0] == 1

    def test_damage_is_found_in_old_formats_too(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "old-0", [])
        path.write_bytes(old_messages(1))
        patch(path, 60, b"\xff")
        assert verify(cli, path)[0] == 1

    def test_people_get_a_table_of_problems_and_one_sentence(self, cli: Cli, tmp_path: Path) -> None:
        path = write_segment(tmp_path / "bad-0", [batch(0), batch(3)])
        patch(path, 100, b"\xff")
        code, out, err = cli("segment", "verify", str(path))
        assert code == 1
        assert "the CRC does not match" in out
        assert err == "Error: 1 problem in 1 file.\n"


@settings(deadline=None)
@given(
    damage=st.lists(st.tuples(st.integers(0, 1 << 20), st.integers(0, 255)), max_size=4),
    cut=st.integers(0, 1 << 20),
    junk=st.binary(max_size=80),
)
def test_no_damage_whatever_makes_the_tools_fail_or_loop(
    tmp_path_factory: pytest.TempPathFactory, damage: list[tuple[int, int]], cut: int, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("fuzz") / "t-0"
    path = write_segment(folder, [batch(offset) for offset in range(0, 12, 3)])
    for file in (path, path.with_suffix(".index"), path.with_suffix(".timeindex")):
        data = bytearray(file.read_bytes())
        for position, value in damage:
            data[position % len(data)] = value
        file.write_bytes(data[: cut % (len(data) + 1)] + junk if cut % 3 else data)
    (partition,) = find([str(folder)])
    verifier = PartitionVerifier(partition, deep=True, advance=lambda amount: None)
    verifier.run()
    summarize(partition)
    for row in batches(partition.segments[0], records=True, from_offset=4):
        json.dumps(row)
    for name, base_offset in partition_index_files(partition):
        with contextlib.suppress(CliError):
            list(index_entries(name, base_offset))


@settings(deadline=None)
@given(position=st.integers(0, 4 * BATCH_BYTES - 1), flipped=st.integers(1, 255))
def test_a_changed_byte_is_always_noticed(
    tmp_path_factory: pytest.TempPathFactory, position: int, flipped: int
) -> None:
    path = write_segment(
        tmp_path_factory.mktemp("flip") / "t-0", [batch(offset) for offset in range(0, 12, 3)]
    )
    patch(path, position, bytes([path.read_bytes()[position] ^ flipped]))
    (partition,) = find([str(path)])
    verifier = PartitionVerifier(partition, deep=True, advance=lambda amount: None)
    (report,) = verifier.run()
    field = position % BATCH_BYTES
    is_leader_epoch = 12 <= field < 16  # any epoch that rises is a possible one
    assert report.state in ("damaged", "torn tail") or is_leader_epoch
    if field >= 16:
        assert report.state == "damaged"
