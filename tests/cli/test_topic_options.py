import pytest

from kbus.cli.topic import parse_assignment

from .running import Cli


def test_a_replica_assignment_has_kafkas_syntax() -> None:
    assert parse_assignment(None) is None
    assert parse_assignment("0:1,1:0,2:0") == [[0, 1], [1, 0], [2, 0]]
    assert parse_assignment("5") == [[5]]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["create"], "name a topic"),
        (["create", "a", "--topic", "b"], "given twice"),
        (["create", "a", "--partitions", "0"], "--partitions"),
        (["create", "a", "--config", "retention.ms"], "name=value"),
        (["create", "a", "--replica-assignment", "0:x"], "broker ids"),
        (["create", "a", "--replica-assignment", "0:0"], "names a broker twice"),
        (["create", "a", "--replica-assignment", "0:1,1"], "partition 1 has 1 replicas"),
        (["create", "a", "--replica-assignment", "0", "--partitions", "1"], "leave out --partitions"),
        (["alter", "a"], "say what to change"),
        (["alter", "a", "--config", "x=1", "--delete-config", "x"], "both set and deleted"),
        (["alter", "a", "--replica-assignment", "0,1"], "--partitions must say the same"),
        (["delete"], "name a topic"),
        (["list", "--output", "yaml"], "--output"),
    ],
)
def test_bad_usage_is_refused_before_anything_is_connected(cli: Cli, arguments: list[str], says: str) -> None:
    code, out, err = cli("topic", *arguments)
    assert (code, out) == (2, "")
    assert says in err
