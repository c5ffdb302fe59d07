"""Starting after a crash, and with files that are missing, damaged or left over."""

import os
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from kbus.records.batch import read_header
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset

from .builders import NOW, append, batch, contents, files, open_log, opened, stored

SMALL = LogConfig(segment_bytes=500, index_interval_bytes=100, segment_index_bytes=1000)
FIRST = "00000000000000000000"
DAMAGED = ".damaged"


def written(path: Path, count: int = 20, *, clean: bool = False, config: LogConfig = SMALL) -> bytes:
    """Leave a log of `count` batches of one record behind; what it holds."""
    log = open_log(path, config)
    append(log, *(batch(size=100, timestamp=NOW + i, producer=1, sequence=i) for i in range(count)), epoch=3)
    data = contents(log)
    log.close(clean=clean)
    return data


def damage(path: Path, position: int, value: bytes = b"\xff\xff") -> None:
    with open(path, "r+b") as file:
        file.seek(position)
        file.write(value)


def test_flushed_records_survive_a_torn_tail(tmp_path: Path) -> None:
    data = written(tmp_path, 2, config=LogConfig())
    one = len(data) // 2
    for size in range(len(data), one - 1, -7):
        os.truncate(tmp_path / f"{FIRST}.log", size)
        with opened(tmp_path, recovery_point=Offset(1)) as log:
            assert contents(log) == (data if size == len(data) else data[:one])
            assert log.recovery_report.lost_from is None
            assert (log.recovery_report.truncated_bytes > 0) is (one < size < len(data))
    assert not any(name.endswith(DAMAGED) for name in files(tmp_path))


def test_the_log_is_cut_at_the_first_bad_batch_and_later_segments_are_dropped(tmp_path: Path) -> None:
    data = written(tmp_path)
    one = len(data) // 20
    logs = [name for name in files(tmp_path) if name.endswith(".log")]
    damage(tmp_path / logs[2], one + 70)
    with opened(tmp_path, SMALL) as log:
        cut = int(logs[2][:20]) + 1
        assert log.log_end_offset == cut
        assert contents(log) == data[: cut * one]
        assert log.recovery_report.dropped_segments == len(logs) - 3
        assert append(log, batch(), epoch=3) == [cut]
        (producer,) = log.active_producers()
        assert producer.last_sequence == cut - 1
    # Good records behind the damage are set aside, not destroyed.
    for name in logs[3:]:
        assert name not in files(tmp_path)
        assert name + DAMAGED in files(tmp_path)
    with opened(tmp_path, SMALL) as log:
        assert log.log_end_offset == cut + 1


def test_only_segments_from_the_recovery_point_on_are_checked(tmp_path: Path) -> None:
    written(tmp_path)
    logs = [name for name in files(tmp_path) if name.endswith(".log")]
    damage(tmp_path / logs[1], 100)
    recovery_point = Offset(int(logs[3][:20]))
    with opened(tmp_path, SMALL, recovery_point=recovery_point) as log:
        assert log.log_end_offset == 20
        assert log.recovery_report.checked_segments == len(logs) - 3


def test_damage_to_flushed_records_is_reported_and_set_aside(tmp_path: Path) -> None:
    data = written(tmp_path, 10, config=LogConfig())
    one = len(data) // 10
    damage(tmp_path / f"{FIRST}.log", 4 * one + 80)
    with opened(tmp_path, recovery_point=Offset(8)) as log:
        assert contents(log) == data[: 4 * one]
        assert log.recovery_report.lost_from == 4
        assert log.recovery_point == 4
        (aside,) = log.recovery_report.set_aside
        assert Path(aside).read_bytes()[one:] == data[5 * one :]


@pytest.mark.parametrize("position", [3, 7, 10, 11, 13, 15, 16, 18, 22, 26, 50])
def test_damage_anywhere_in_a_header_is_found(tmp_path: Path, position: int) -> None:
    """Also in base offset and leader epoch, which no CRC covers."""
    data = written(tmp_path, 5, config=LogConfig())
    one = len(data) // 5
    for number in range(5):
        (byte,) = data[number * one + position : number * one + position + 1]
        for bit in range(8):
            path = tmp_path / f"{FIRST}.log"
            path.write_bytes(data)
            damage(path, number * one + position, bytes([byte ^ 1 << bit]))
            with opened(tmp_path) as log:
                assert contents(log) == data[: number * one]
                log.truncate_to(Offset(0))
                append(log, *(batch(size=100) for _ in range(5)), epoch=3)


def test_a_gap_that_compaction_left_is_no_damage(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    records = b"".join(stored(batch(), offset) for offset in (0, 5, 6, 20, 21))
    log.append_as_follower(records)
    log.close(clean=False)
    with opened(tmp_path) as log:
        assert contents(log) == records
        assert log.log_end_offset == 22


def test_a_lost_end_of_a_segment_leaves_no_hole(tmp_path: Path) -> None:
    """Both segments are sound, but records between them are gone."""
    data = written(tmp_path)
    one = len(data) // 20
    logs = [name for name in files(tmp_path) if name.endswith(".log")]
    os.truncate(tmp_path / logs[1], one)
    with opened(tmp_path, SMALL) as log:
        assert log.log_end_offset == int(logs[1][:20]) + 1
        assert log.recovery_report.dropped_segments == len(logs) - 2


def test_a_segment_that_begins_below_the_end_of_the_one_before_is_dropped(tmp_path: Path) -> None:
    data = written(tmp_path)
    one = len(data) // 20
    logs = [name for name in files(tmp_path) if name.endswith(".log")]
    second = int(logs[1][:20])
    with open(tmp_path / logs[0], "ab") as file:
        file.write(stored(batch(size=100), second, 3))
    with opened(tmp_path, SMALL) as log:
        assert log.log_end_offset == second + 1
        assert contents(log)[: second * one] == data[: second * one]


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(
    "ruin",
    [
        lambda path: path.unlink(),
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"\x00" * 240),
        lambda path: path.write_bytes(b"\xff" * 240),
        lambda path: path.write_bytes(b"abc"),
        lambda path: path.write_bytes(struct.pack(">ii", 1, 13) * 3),
    ],
    ids=["missing", "empty", "zeros", "ones", "odd size", "wrong"],
)
def test_lost_indexes_are_rebuilt(tmp_path: Path, clean: bool, ruin: Callable[[Path], None]) -> None:
    data = written(tmp_path, clean=clean)
    for name in files(tmp_path):
        if name.endswith((".index", ".timeindex")):
            ruin(tmp_path / name)
    with opened(tmp_path, SMALL, clean=clean) as log:
        assert contents(log) == data
        for offset in range(20):
            found = log.read(offset, 1, end=log.log_end_offset, min_one_batch=True).read()
            assert read_header(found).base_offset == offset
            assert log.offset_for_timestamp(NOW + offset) == (offset, NOW + offset, 3)


def test_an_index_that_points_into_a_batch_is_not_believed(tmp_path: Path) -> None:
    data = written(tmp_path, clean=True, config=LogConfig(index_interval_bytes=100))
    path = tmp_path / f"{FIRST}.index"
    entries = list(struct.iter_unpack(">ii", path.read_bytes()))
    assert len(entries) > 5
    path.write_bytes(
        b"".join(struct.pack(">ii", o, p + 3 if 0 < i < 5 else p) for i, (o, p) in enumerate(entries))
    )
    with opened(tmp_path, clean=True) as log:
        assert contents(log) == data
    path.write_bytes(b"".join(struct.pack(">ii", max(o - 3, i), p) for i, (o, p) in enumerate(entries)))
    with opened(tmp_path, clean=True) as log:
        for offset in range(20):
            found = log.read(offset, 1, end=log.log_end_offset, min_one_batch=True).read()
            assert read_header(found).base_offset == offset


def test_a_damaged_snapshot_is_replaced_by_what_the_log_says(tmp_path: Path) -> None:
    written(tmp_path, clean=True)
    for name in files(tmp_path):
        if name.endswith(".snapshot"):
            damage(tmp_path / name, 8)
    for clean in (True, False):
        with opened(tmp_path, SMALL, clean=clean) as log:
            (producer,) = log.active_producers()
            assert (producer.producer_id, producer.last_sequence) == (1, 19)
            assert len(producer.batches) == 5


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe", b"0\n5\n1 0\n", b"7\n0\n"])
def test_epochs_are_read_from_the_log_if_their_file_is_lost(tmp_path: Path, content: bytes | None) -> None:
    log = open_log(tmp_path, SMALL)
    for epoch in (2, 5, 9):
        append(log, *(batch(size=100) for _ in range(6)), epoch=epoch)
    data = contents(log)
    log.close()
    path = tmp_path / "leader-epoch-checkpoint"
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for clean in (True, False):
        with opened(tmp_path, SMALL, clean=clean) as log:
            assert log.epochs == [(2, 0), (5, 6), (9, 12)]
            assert contents(log) == data
    assert path.read_text() == "0\n3\n2 0\n5 6\n9 12\n"
    # What could not be read is kept for people to look at.
    assert ("leader-epoch-checkpoint.unreadable" in files(tmp_path)) is bool(content)


def test_epochs_beyond_the_end_of_the_log_are_forgotten(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    append(log, batch(), epoch=1)
    log.start_epoch(LeaderEpoch(4))
    log.close(clean=False)
    with opened(tmp_path) as log:
        assert log.epochs == [(1, 0)]


def test_a_log_that_ends_below_its_start_offset_begins_anew_there(tmp_path: Path) -> None:
    written(tmp_path, 5)
    with opened(tmp_path, log_start_offset=Offset(9)) as log:
        assert (log.log_start_offset, log.log_end_offset) == (9, 9)
        assert append(log, batch(), epoch=3) == [9]
        assert f"{FIRST}.log.deleted" in files(tmp_path)
        assert len(log.take_retired_files(NOW + 10**9)) >= 3


def test_a_log_without_segments_begins_at_its_start_offset(tmp_path: Path) -> None:
    with opened(tmp_path, log_start_offset=Offset(7), recovery_point=Offset(50)) as log:
        assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (7, 7, 7)


def test_empty_segments_do_no_harm(tmp_path: Path) -> None:
    data = written(tmp_path, 3, config=LogConfig())
    (tmp_path / "00000000000000000003.log").touch()
    for clean in (True, False):
        with opened(tmp_path, clean=clean) as log:
            assert contents(log) == data
            assert log.log_end_offset == 3
            assert len(log.segments) == 2
    with opened(tmp_path) as log:
        assert append(log, batch(), epoch=3) == [3]


def test_a_torn_tail_is_found_although_the_stop_is_said_to_have_been_clean(tmp_path: Path) -> None:
    data = written(tmp_path, 5, clean=True, config=LogConfig())
    with open(tmp_path / f"{FIRST}.log", "ab") as file:
        file.write(stored(batch(), 5)[:50])
    with opened(tmp_path, clean=True, recovery_point=Offset(5)) as log:
        assert contents(log) == data
        assert log.recovery_report.truncated_bytes == 50


def test_files_that_waited_for_deletion_are_removed(tmp_path: Path) -> None:
    data = written(tmp_path)
    for name in ("00000000000000000000.log.deleted", "00000000000000000004.index.deleted", "x.tmp"):
        (tmp_path / name).write_bytes(b"junk")
    (tmp_path / "00000000000000000777.index").write_bytes(b"")
    with opened(tmp_path, SMALL) as log:
        assert contents(log) == data
    assert not any(n.endswith((".deleted", ".tmp")) or "777" in n for n in files(tmp_path))


def test_half_a_compaction_is_undone_and_a_whole_one_finished(tmp_path: Path) -> None:
    data = written(tmp_path)
    one = len(data) // 20
    logs = [name for name in files(tmp_path) if name.endswith(".log")]
    second, third = int(logs[1][:20]), int(logs[2][:20])
    compacted = stored(batch(size=100), 0, 3) + stored(batch(size=100), third - 1, 3)
    (tmp_path / f"{FIRST}.log.cleaned").write_bytes(compacted[:50])
    with opened(tmp_path, SMALL) as log:
        assert contents(log) == data
    assert f"{FIRST}.log.cleaned" not in files(tmp_path)
    (tmp_path / f"{FIRST}.log.swap").write_bytes(compacted)
    (tmp_path / f"{FIRST}.index.swap").write_bytes(b"")
    (tmp_path / f"{FIRST}.timeindex.swap").write_bytes(b"")
    with opened(tmp_path, SMALL, recovery_point=Offset(third)) as log:
        assert contents(log) == compacted + data[third * one :]
        assert second not in [s.base_offset for s in log.segments]


def test_a_swap_beside_half_a_compaction_is_undone(tmp_path: Path) -> None:
    data = written(tmp_path)
    (tmp_path / f"{FIRST}.log.cleaned").write_bytes(b"")
    (tmp_path / f"{FIRST}.log.swap").write_bytes(b"")
    with opened(tmp_path, SMALL) as log:
        assert contents(log) == data


def test_sound_logs_are_loaded_without_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for was_clean, clean in ((False, True), (True, False), (False, True)):
        with opened(tmp_path / "idle", clean=was_clean) as log:
            log.close(clean=clean)
        with opened(tmp_path / "used", SMALL, clean=was_clean) as log:
            append(log, *(batch(size=100) for _ in range(7)))
            log.close(clean=clean)
    with opened(tmp_path / "used", SMALL, clean=True) as log:
        assert log.log_end_offset == 21
    assert [record.message for record in caplog.records if record.levelname != "INFO"] == []


def test_recovery_is_repeated_safely(tmp_path: Path) -> None:
    data = written(tmp_path)
    damage(tmp_path / [n for n in files(tmp_path) if n.endswith(".log")][1], 10)
    ends = []
    for _ in range(3):
        with opened(tmp_path, SMALL) as log:
            ends.append(log.log_end_offset)
            assert data.startswith(contents(log))
    assert len(set(ends)) == 1


def test_what_was_set_aside_is_never_overwritten(tmp_path: Path) -> None:
    config = LogConfig()
    for _ in range(3):
        log = open_log(tmp_path, config, recovery_point=Offset(1))
        append(log, batch(size=100), epoch=3)
        log.close(clean=False)
        damage(tmp_path / f"{FIRST}.log", 70)
    open_log(tmp_path, config, recovery_point=Offset(1)).close()
    assert len([name for name in files(tmp_path) if name.endswith(DAMAGED)]) == 3


def test_a_huge_batch_length_costs_no_memory(tmp_path: Path) -> None:
    data = written(tmp_path, 3, config=LogConfig())
    damage(tmp_path / f"{FIRST}.log", len(data) // 3 + 8, struct.pack(">i", 2**31 - 1))
    with opened(tmp_path) as log:
        assert log.log_end_offset == 1
