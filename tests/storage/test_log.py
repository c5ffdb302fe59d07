"""A log in use: appending, reading, rolling, truncating, deleting, looking up by time."""

import os
from pathlib import Path

import pytest

from kbus.protocol.errors import ErrorCode
from kbus.records.batch import TimestampType, iter_headers, read_header
from kbus.records.crc import batch_crc
from kbus.storage.log_config import LogConfig
from kbus.types import LeaderEpoch, Offset

from .builders import (
    EPOCH,
    NOW,
    Clock,
    append,
    batch,
    contents,
    error_of,
    files,
    headers_in,
    open_log,
    opened,
    stored,
)

SMALL = LogConfig(segment_bytes=1000, index_interval_bytes=200, segment_index_bytes=1000)


def test_batches_are_stored_as_sent_but_for_offset_and_epoch(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        first, second = batch(3), batch(2, size=500)
        info = log.append_as_leader(first, leader_epoch=LeaderEpoch(7))
        assert (info.first_offset, info.last_offset, info.duplicate) == (0, 2, False)
        assert info.max_timestamp == NOW + 2
        assert info.log_append_time_ms == -1
        info = log.append_as_leader(memoryview(second), leader_epoch=LeaderEpoch(7))
        assert (info.first_offset, info.last_offset) == (3, 4)
        assert contents(log) == stored(first, 0, 7) + stored(second, 3, 7)
        assert (log.log_start_offset, log.log_end_offset) == (0, 5)
        assert (tmp_path / "00000000000000000000.log").read_bytes() == contents(log)


def test_log_append_time_is_reported_and_stored(tmp_path: Path) -> None:
    config = LogConfig(message_timestamp_type=TimestampType.LOG_APPEND_TIME)
    with opened(tmp_path, config, clock=Clock(NOW + 500)) as log:
        info = log.append_as_leader(batch(2), leader_epoch=EPOCH)
        assert info.log_append_time_ms == info.max_timestamp == NOW + 500
        (header,) = headers_in(log)
        assert header.max_timestamp == NOW + 500
        assert header.timestamp_type is TimestampType.LOG_APPEND_TIME
        assert header.crc == batch_crc(contents(log))


def test_a_refused_batch_leaves_no_trace(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch())
        broken = bytearray(batch())
        broken[-1] ^= 1
        assert error_of(lambda: append(log, bytes(broken))) is ErrorCode.corrupt_message
        assert error_of(lambda: append(log, batch(size=2 * 2**20))) is ErrorCode.message_too_large
        assert log.log_end_offset == 1
        assert append(log, batch()) == [1]


def test_a_read_starts_with_the_batch_that_holds_the_offset(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        sent = [batch(3), batch(3), batch(3)]
        append(log, *sent)
        data = log.read(4, 10_000, end=log.log_end_offset, min_one_batch=False).read()
        assert data == stored(sent[1], 3) + stored(sent[2], 6)


def test_a_read_never_reaches_a_batch_at_or_above_its_end(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        sent = [batch(3), batch(3), batch(3)]
        append(log, *sent)
        data = log.read(0, 10_000, end=Offset(6), min_one_batch=True).read()
        assert data == stored(sent[0], 0) + stored(sent[1], 3)
        # An end within a batch hides the whole batch.
        assert log.read(0, 10_000, end=Offset(5), min_one_batch=True).read() == stored(sent[0], 0)
        assert log.read(3, 10_000, end=Offset(3), min_one_batch=True).length == 0
        assert log.read(7, 10_000, end=Offset(3), min_one_batch=True).length == 0


def test_the_first_batch_comes_whole_or_not_at_all_and_the_last_may_be_cut(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(size=100), batch(size=100))
        one = len(contents(log)) // 2
        end = log.log_end_offset
        assert log.read(0, 10, end=end, min_one_batch=True).length == one
        assert log.read(0, 10, end=end, min_one_batch=False).length == 0
        assert log.read(0, one + 5, end=end, min_one_batch=False).length == one + 5
        assert log.read(0, one, end=end, min_one_batch=False).length == one


def test_reads_outside_of_the_log_are_out_of_range(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(5))
        log.delete_before(Offset(2))
        end = log.log_end_offset
        for offset in (-1, 0, 1, 6):
            code = error_of(lambda offset=offset: log.read(offset, 10, end=end, min_one_batch=True))  # type: ignore[misc]
            assert code is ErrorCode.offset_out_of_range
        assert log.read(5, 10, end=end, min_one_batch=True).length == 0
        assert log.read(2, 1000, end=end, min_one_batch=True).length > 0


def test_every_offset_is_found_across_many_segments(tmp_path: Path) -> None:
    sent = [batch(1 + i % 3, size=i % 90) for i in range(100)]
    with opened(tmp_path, SMALL) as log:
        firsts = append(log, *sent)
        assert len(log.segments) > 8
        expected = b"".join(stored(b, o) for b, o in zip(sent, firsts, strict=True))
        assert contents(log) == expected
        for first, b in zip(firsts, sent, strict=True):
            for offset in range(first, first + read_header(b).record_count):
                data = log.read(offset, 1, end=log.log_end_offset, min_one_batch=True).read()
                assert data == stored(b, first)
    with opened(tmp_path, SMALL, recovery_point=Offset(0)) as log:
        assert contents(log) == expected


def test_a_slice_stays_readable_after_its_segment_was_deleted(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        sent = [batch(size=300) for _ in range(10)]
        append(log, *sent)
        slice_ = log.read(0, 1, end=log.log_end_offset, min_one_batch=True)
        log.delete_before(log.log_end_offset)
        for path in log.take_retired_files(NOW + 10**9):
            os.unlink(path)
        assert slice_.read() == stored(sent[0], 0)
        assert os.pread(slice_.file.fileno(), slice_.length, slice_.position) == stored(sent[0], 0)


def test_a_segment_rolls_before_it_exceeds_segment_bytes(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500)) as log:
        append(log, *(batch(size=100) for _ in range(10)))
        assert all(0 < segment.size <= 500 for segment in log.segments)
        assert [s.base_offset for s in log.segments] == [0, 2, 4, 6, 8]


def test_a_batch_larger_than_a_segment_is_refused(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_bytes=500)) as log:
        assert error_of(lambda: append(log, batch(size=600))) is ErrorCode.record_list_too_large
        assert log.log_end_offset == 0


def test_a_segment_rolls_by_the_time_of_its_records(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(segment_ms=1000)) as log:
        append(log, batch(timestamp=NOW), batch(timestamp=NOW + 1000))
        assert len(log.segments) == 1
        append(log, batch(timestamp=NOW + 1001))
        assert [s.base_offset for s in log.segments] == [0, 2]


def test_a_segment_without_timestamps_rolls_by_the_clock(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, LogConfig(segment_ms=1000), clock=clock) as log:
        append(log, batch(timestamp=-1))
        clock.now_ms += 1001
        append(log, batch(timestamp=-1))
        assert len(log.segments) == 2


def test_a_segment_rolls_when_an_index_is_full(tmp_path: Path) -> None:
    config = LogConfig(index_interval_bytes=1, segment_index_bytes=36)
    with opened(tmp_path, config) as log:
        append(log, *(batch(timestamp=NOW + i) for i in range(20)))
        assert len(log.segments) > 3
        for segment in log.segments[:-1]:
            assert segment.offset_index.count == segment.time_index.count == 2
            assert os.path.getsize(segment.time_index.path) == 24


def test_offsets_too_far_from_a_segments_first_begin_a_new_one(tmp_path: Path) -> None:
    with opened(tmp_path, LogConfig(cleanup_policy=frozenset(("compact",)))) as log:
        log.append_as_follower(stored(batch(), 0))
        far = 2**31 + 5
        log.append_as_follower(stored(batch(), far))
        assert [s.base_offset for s in log.segments] == [0, far]
        assert log.log_end_offset == far + 1
        assert (
            read_header(log.read(1, 100, end=log.log_end_offset, min_one_batch=True).read()).base_offset
            == far
        )


def test_a_follower_stores_exactly_what_the_leader_has(tmp_path: Path) -> None:
    with opened(tmp_path / "leader", SMALL) as leader, opened(tmp_path / "follower", SMALL) as follower:
        append(leader, *(batch(2, size=i) for i in range(20)), epoch=3)
        append(leader, *(batch(2, size=i, producer=9, sequence=2 * i) for i in range(20)), epoch=4)
        data = contents(leader)
        # As fetched: the last batch may be cut off.
        follower.append_as_follower(data[:3000])
        follower.append_as_follower(data[follower.size_bytes :])
        assert contents(follower) == data
        assert follower.log_end_offset == leader.log_end_offset
        assert follower.epochs == leader.epochs == [(3, 0), (4, 40)]
        assert follower.active_producers() == leader.active_producers()


def test_a_follower_refuses_offsets_that_do_not_go_on(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        log.append_as_follower(stored(batch(3), 0))
        for records in (stored(batch(), 2), stored(batch(), 3) + stored(batch(), 3)):
            code = error_of(lambda records=records: log.append_as_follower(records))  # type: ignore[misc]
            assert code is ErrorCode.offset_out_of_range
        broken = bytearray(stored(batch(), 3))
        broken[-1] ^= 1
        assert error_of(lambda: log.append_as_follower(bytes(broken))) is ErrorCode.corrupt_message
        assert log.log_end_offset == 3
        assert log.append_as_follower(stored(batch(), 3)).first_offset == 3


def test_truncation_ends_the_log_where_it_is_told(tmp_path: Path) -> None:
    sent = [batch(size=100) for _ in range(30)]
    for target in (0, 1, 4, 5, 17, 29, 30):
        with opened(tmp_path / str(target), SMALL) as log:
            append(log, *sent)
            assert log.truncate_to(Offset(target)) is (target < 30)
            assert log.log_end_offset == target
            assert contents(log) == b"".join(stored(b, i) for i, b in enumerate(sent[:target]))
            assert append(log, batch(size=7)) == [target]
            assert contents(log).endswith(stored(batch(size=7), target))


def test_truncation_within_a_batch_drops_the_whole_batch(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(3), batch(3))
        log.truncate_to(Offset(4))
        assert log.log_end_offset == 3
        assert append(log, batch()) == [3]


def test_a_log_can_start_anew_at_any_offset(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        append(log, *(batch(size=300) for _ in range(10)))
        for offset in (1000, 5, 5):
            log.truncate_fully_and_start_at(Offset(offset))
            assert (log.log_start_offset, log.log_end_offset, log.recovery_point) == (offset,) * 3
            assert log.latest_epoch == -1
            assert append(log, batch()) == [offset]
            assert len(log.segments) == 1
    with opened(tmp_path, SMALL) as log:
        assert (log.log_start_offset, log.log_end_offset) == (5, 6)


def test_truncation_below_the_first_segment_starts_anew_there(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        append(log, *(batch(size=300) for _ in range(10)))
        log.delete_before(Offset(8))
        log.truncate_to(Offset(3))
        assert (log.log_start_offset, log.log_end_offset) == (3, 3)


def test_deleting_before_an_offset_hides_records_and_removes_whole_segments(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        append(log, *(batch(size=300) for _ in range(10)))
        before = [s.base_offset for s in log.segments]
        log.delete_before(Offset(5))
        assert log.log_start_offset == 5
        assert [s.base_offset for s in log.segments] == [b for b in before if b >= 4]
        log.delete_before(Offset(2))
        assert log.log_start_offset == 5
        assert error_of(lambda: log.delete_before(Offset(11))) is ErrorCode.offset_out_of_range
        log.delete_before(Offset(10))
        assert log.log_start_offset == log.log_end_offset == 10
        assert append(log, batch()) == [10]


def test_removed_files_are_renamed_at_once_and_handed_out_after_the_delay(tmp_path: Path) -> None:
    clock = Clock()
    with opened(tmp_path, SMALL, clock=clock) as log:
        append(log, *(batch(size=300) for _ in range(10)))
        log.delete_before(Offset(10))
        assert "00000000000000000000.log" not in files(tmp_path)
        assert "00000000000000000000.log.deleted" in files(tmp_path)
        assert log.take_retired_files(NOW + 59_999) == []
        taken = log.take_retired_files(NOW + 60_000)
        assert sorted(map(os.path.basename, taken)) == [n for n in files(tmp_path) if n.endswith(".deleted")]
        assert log.take_retired_files(NOW + 60_000) == []


def test_a_timestamp_finds_the_first_record_that_is_not_older(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        append(log, *(batch(3, size=50, timestamp=NOW + 10 * i) for i in range(30)), epoch=2)
        for wanted, offset, found in (
            (0, 0, NOW),
            (NOW, 0, NOW),
            (NOW + 1, 1, NOW + 1),
            (NOW + 3, 3, NOW + 10),
            (NOW + 151, 46, NOW + 151),
            (NOW + 292, 89, NOW + 292),
        ):
            assert log.offset_for_timestamp(wanted) == (offset, found, 2)
        assert log.offset_for_timestamp(NOW + 293) is None
        assert log.offset_of_max_timestamp() == (89, NOW + 292, 2)
        log.delete_before(Offset(50))
        assert log.offset_for_timestamp(0) == (50, NOW + 162, 2)


def test_a_timestamp_is_found_by_offset_when_records_are_out_of_order(tmp_path: Path) -> None:
    with opened(tmp_path, SMALL) as log:
        times = [5, 9, 2, 9, 1, 7, 3, 8, 8, 0] * 5
        append(log, *(batch(size=80, timestamp=NOW + t) for t in times))
        for wanted in range(11):
            expected = next((i for i, t in enumerate(times) if t >= wanted), None)
            found = log.offset_for_timestamp(NOW + wanted)
            assert (found.offset if found else None) == expected
        latest = log.offset_of_max_timestamp()
        assert latest is not None
        assert (latest.offset, latest.timestamp) == (1, NOW + 9)


def test_an_empty_log_has_no_timestamps(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        assert log.offset_for_timestamp(0) is None
        assert log.offset_of_max_timestamp() is None


def test_settings_may_change_while_in_use(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        append(log, batch(size=400))
        log.configure(LogConfig(segment_bytes=500, max_message_bytes=300))
        append(log, batch(size=100))
        assert len(log.segments) == 2
        assert error_of(lambda: append(log, batch(size=400))) is ErrorCode.message_too_large


def test_an_idle_log_holds_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    logs = [open_log(tmp_path / str(i)) for i in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    for log in logs:
        log.close()
    logs = [open_log(tmp_path / str(i), clean=True) for i in range(20)]
    assert len(os.listdir("/proc/self/fd")) == before
    for log in logs:
        append(log, batch())
        log.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_closed_log_can_no_longer_be_used(tmp_path: Path) -> None:
    log = open_log(tmp_path)
    log.close()
    assert error_of(lambda: append(log, batch())) is ErrorCode.kafka_storage_error
    assert error_of(log.prepare_flush) is ErrorCode.kafka_storage_error
    log.close()


@pytest.mark.parametrize("clean", [True, False])
def test_everything_is_there_again_after_a_restart(tmp_path: Path, clean: bool) -> None:
    log = open_log(tmp_path, SMALL)
    append(log, *(batch(2, size=i, timestamp=NOW + i) for i in range(40)), epoch=1)
    log.start_epoch(LeaderEpoch(5))
    append(log, *(batch(2, size=i) for i in range(10)), epoch=5)
    log.delete_before(Offset(9))
    data, epochs, size = contents(log), log.epochs, log.size_bytes
    log.close(clean=clean)
    with opened(tmp_path, SMALL, clean=clean, log_start_offset=Offset(9)) as log:
        assert contents(log) == data
        assert log.epochs == epochs == [(1, 9), (5, 80)]
        assert (log.log_start_offset, log.log_end_offset, log.size_bytes) == (9, 100, size)
        assert log.recovery_point == (100 if clean else 0)
        assert log.offset_of_max_timestamp() == (79, NOW + 40, 1)
        assert append(log, batch(), epoch=5) == [100]
        assert len(list(iter_headers(contents(log)))) > 40
