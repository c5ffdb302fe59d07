"""What runs inside the process of a member: the same code as `kbus broker start`, watched over by a pipe."""

import ctypes
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Literal

from multiprocess.connection import Connection

from kbus.cluster.orphans import die_with_template

READY: Final = "ready"
REFUSED: Final = "refused"
Report = tuple[Literal["ready"], dict[str, Any]] | tuple[Literal["refused"], str]
"""The one message of a member: what it serves, or why it does not, in its own words."""

_PR_SET_NAME: Final = 15


def run_member(broker_id: int, properties: Mapping[str, str], log_path: str, report: Connection) -> None:
    """Returns when the broker has stopped; exits with 1 if it does not start."""
    die_with_template()
    _name_process(f"kbus-broker-{broker_id}")
    _write_output_to(log_path)

    from kbus.node.main import BrokerRefusedError, RunningBroker, run_broker

    def on_ready(broker: RunningBroker) -> None:
        report.send((READY, {"bootstrap_servers": broker.bootstrap_servers}))
        report.close()

    try:
        code = run_broker(None, properties, on_ready)
    except BrokerRefusedError as error:
        print(error, file=sys.stderr)
        report.send((REFUSED, str(error)))
        code = 1
    sys.exit(code)


def _name_process(name: str) -> None:
    with suppress(AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_NAME, name.encode()[:15], 0, 0, 0)


def _write_output_to(path: str) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    os.close(descriptor)
