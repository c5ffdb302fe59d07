"""A cluster lives no longer than its supervisor, however that ends.

Linux kills a process that has asked for it (PR_SET_PDEATHSIG) when its parent is gone: the process that
members are forked from asks for it, and each member, which is a child of that one, does so, too."""

import ctypes
import os
import signal
from contextlib import suppress
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_PARENT_VARIABLE: Final = "_KBUS_SUPERVISOR"


def name_as_supervisor() -> None:
    """For the supervisor, before it starts anything: by this its child knows whether it is still there."""
    os.environ[_PARENT_VARIABLE] = str(os.getpid())


def die_with_supervisor() -> None:
    """For the supervisor's child."""
    _die_with_parent()
    expected = os.environ.get(_PARENT_VARIABLE)
    if expected is not None and os.getppid() != int(expected):
        os._exit(1)  # it went before the asking


def die_with_template() -> None:
    """For that one's children."""
    import multiprocess

    _die_with_parent()
    supervisor = multiprocess.parent_process()
    if supervisor is not None and not supervisor.is_alive():
        os._exit(1)


def _die_with_parent() -> None:
    with suppress(AttributeError):  # no such call on another system
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
