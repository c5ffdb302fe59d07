"""Topic names: what may become the name of a folder and of a znode."""

import re
from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kbus.core.cluster import MAX_TOPIC_NAME, PartitionState, check_topic_name, metric_name
from kbus.protocol.errors import ErrorCode, KafkaError
from kbus.types import NO_LEADER, BrokerId, LeaderEpoch


@pytest.mark.parametrize(
    "name", ["a", "...", "-", "_", "a.b_c-D9", "__consumer_offsets", "x" * MAX_TOPIC_NAME]
)
def test_legal_names(name: str) -> None:
    check_topic_name(name)


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "/",
        "a b",
        "a\n",
        "\n",
        "a\0",
        "é",
        "٣",
        "x" * (MAX_TOPIC_NAME + 1),
        "a:b",
        "a\\b",
    ],
)
def test_illegal_names_are_refused_with_a_reason_of_bounded_length(name: str) -> None:
    with pytest.raises(KafkaError) as refused:
        check_topic_name(name)
    assert refused.value.code is ErrorCode.invalid_topic_exception
    assert refused.value.message is not None
    assert len(refused.value.message) < 300


@given(st.text(max_size=300))
def test_what_is_taken_is_one_component_of_a_path_and_nothing_else_is(name: str) -> None:
    legal = re.fullmatch(r"[a-zA-Z0-9._\-]{1,249}", name) is not None and name not in (".", "..")
    try:
        check_topic_name(name)
    except KafkaError:
        assert not legal
    else:
        assert legal
        assert PurePosixPath("/data", f"{name}-0").parent == PurePosixPath("/data")
        assert name.isascii()


def test_names_that_metrics_cannot_tell_apart_have_one_metric_name() -> None:
    assert metric_name("a.b_c") == metric_name("a_b.c") == "a_b_c"
    assert metric_name("a-b") != metric_name("a.b")


def test_a_partition_without_a_leader_says_so() -> None:
    state = PartitionState(
        replicas=(BrokerId(1),),
        leader=NO_LEADER,
        leader_epoch=LeaderEpoch(3),
        isr=(BrokerId(1),),
        partition_epoch=1,
    )
    assert not state.has_leader
