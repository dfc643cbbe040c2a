"""`run --on-move`: a program whose lease was moved is started again at its new place.

A lease is moved by granting it elsewhere under a higher `lease_epoch` and telling its old place to go: the program gets
SIGTERM and its grace there. So when it ends and the epoch has risen meanwhile, it ended for the move. Where there is no
other place yet (its node is drained, say), the lease goes back to its queue, and the program waits as it did at first.
"""

from __future__ import annotations

import argparse
import enum
import subprocess
import time
from collections.abc import Callable
from typing import NamedTuple

from aliquot.client import HeldLease, LeaseState, SliceState
from aliquot.common.errors import AliquotError

LOOK_S = 0.2
"""Between two looks whether the new place is ready."""


class OnMove(enum.StrEnum):
    """What becomes of a program whose lease is moved."""

    NONE = "none"
    """It ends, as by a preemption."""
    SIGNAL = "signal"
    """It is started again if a signal ended it; one that catches SIGTERM and exits has decided by itself."""
    RESTART = "restart"
    """It is started again, whatever it ended with."""


class HookFailed(AliquotError):
    """A hook of a move ended with another code than 0."""


class Following(NamedTuple):
    """What the options of `run` say about moves."""

    on_move: OnMove
    before: str
    after: str

    def place_of(self, lease: HeldLease) -> int:
        """The number of the lease's present place: it rises with every move."""
        return lease.info.lease_epoch

    def moved_from(self, lease: HeldLease, place: int, code: int, say: Callable[[str], None]) -> bool:
        """Whether a program that ended with this code is to be started again; then waits until it can be.

        Raises `HookFailed`.
        """
        if self.on_move is OnMove.NONE or (self.on_move is OnMove.SIGNAL and code >= 0):
            return False
        lease.refresh()
        if lease.state in _OVER or (lease.info.lease_epoch <= place and lease.state not in _SENT_BACK):
            return False
        _call(self.before, "--before-move")
        if lease.state in _SENT_BACK:
            say("the lease lost its place; waiting for another one, Ctrl-C withdraws it")
        while not _is_there(lease, place):
            if lease.loss is not None or lease.state in _OVER:
                return False
            time.sleep(LOOK_S)
            lease.refresh()
        _call(self.after, "--after-move")
        return True


def _is_there(lease: HeldLease, place: int) -> bool:
    """Whether the lease has another place than this one, and nothing of its old one any more."""
    active = lease.state is LeaseState.ACTIVE and all(part.state is SliceState.ACTIVE for part in lease.slices)
    return active and lease.info.lease_epoch > place


_OVER = frozenset({LeaseState.ENDED})
_SENT_BACK = frozenset({LeaseState.PREEMPTING, LeaseState.QUEUED})
"""States of a lease that goes back to its queue, or has come there."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options."""
    parser.add_argument(
        "--on-move",
        type=OnMove,
        choices=list(OnMove),
        default=OnMove.NONE,
        metavar="WORD",
        help="allow that the lease is moved to other devices of this machine, and start the program again there: "
        "restart, or signal (only if a signal ended it); none (default): it is not moved",
    )
    parser.add_argument("--before-move", default="", metavar="COMMAND", help="a shell command when it has ended for it")
    parser.add_argument("--after-move", default="", metavar="COMMAND", help="one before it is started again")


def following(args: argparse.Namespace) -> Following:
    """What the options say; a program that is started again may be moved."""
    args.movable = args.movable or args.on_move is not OnMove.NONE
    return Following(args.on_move, args.before_move, args.after_move)


def _call(command: str, option: str) -> None:
    if command and (code := subprocess.run(command, shell=True, check=False).returncode):  # noqa: S602 - asked for
        raise HookFailed(f"{option} ended with {code}", hint="the lease is released; mend the command and start again")
