"""What can be done to a broker, and what a cluster that has recovered from it looks like."""

from enum import Enum, StrEnum


class Comeback(Enum):
    """What is expected of the broker itself."""

    NONE = "none"
    """It stays away."""
    IN_SYNC = "in sync"
    """It is registered, and in the ISR of all its partitions again."""
    REGISTERED = "registered"
    """It has registered anew, and is in the ISR of all its partitions again."""


class Fault(StrEnum):
    KILL = "kill"
    """SIGKILL: no flush, no goodbye."""
    PAUSE = "pause"
    """SIGSTOP: a zombie, which holds its connections and does not answer."""
    RESUME = "resume"
    """SIGCONT: the zombie goes on where it was, with what it believed then."""
    RESTART = "restart"
    """A controlled stop, and a start."""
    EXPIRE = "expire"
    """ZooKeeper drops the broker's session. The broker runs on, and finds out."""

    @property
    def comeback(self) -> Comeback:
        return _COMEBACKS[self]

    @property
    def moves_leaders(self) -> bool:
        """Whether each partition that the broker leads gets a new leader epoch."""
        return self is not Fault.RESUME

    @property
    def leader_must_be_another(self) -> bool:
        return self.comeback is Comeback.NONE

    @property
    def past_tense(self) -> str:
        return _PAST_TENSES[self]


_COMEBACKS = {
    Fault.KILL: Comeback.NONE,
    Fault.PAUSE: Comeback.NONE,
    Fault.RESUME: Comeback.IN_SYNC,
    Fault.RESTART: Comeback.REGISTERED,
    Fault.EXPIRE: Comeback.REGISTERED,
}
_PAST_TENSES = {
    Fault.KILL: "Killed",
    Fault.PAUSE: "Paused",
    Fault.RESUME: "Resumed",
    Fault.RESTART: "Restarted",
    Fault.EXPIRE: "Expired the ZooKeeper session of",
}
