"""Commands that wait, by who gives them: each principal in turn has one decided, so that one's storm is its own.

The order of one principal's commands stays. Commands of agents and of the pool itself come first, since they free and
confirm what others wait for; but after eight of them somebody else has a turn, however many there are.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

from aliquot.coordinator.core.commands import Command, OnBehalf
from aliquot.coordinator.writing.open_group import Reply

OWN_AHEAD = 8
SHARE = 4
"""A principal may have this many times as many waiting as there is room left. So one alone fills four fifths of the
queue, several share it, and there is always room for another.
"""


class Waiting(NamedTuple):
    """A command that waits."""

    command: Command[Any]
    reply: Reply
    came_ns: int


_Line = deque[Waiting]


def giver_of(command: Command[Any]) -> str:
    """The principal that gives a command; empty: an agent, or the pool itself."""
    if isinstance(command, OnBehalf):
        return command.by.principal
    by = getattr(command, "by", "")
    return by if isinstance(by, str) else ""


class Turns:
    """See the module's docstring. Adding and taking cost the same, however many wait and whoever they are of."""

    __slots__ = ("_ahead", "_lines", "_own", "_size", "_turns")

    def __init__(self) -> None:
        self._own: _Line = deque()
        self._ahead = 0
        """How many of those were taken since somebody else's turn."""
        self._lines: dict[str, _Line] = {}
        """By principal, none of them empty."""
        self._turns: deque[tuple[str, _Line]] = deque()
        """The same: whose turn is next comes first."""
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def oldest_ns(self, giver: str) -> int | None:
        """When the oldest command came that another one of this principal waits for; None: there is none."""
        line = self._lines.get(giver)
        if line is None:
            return self._own[0].came_ns if self._own else None
        return min(self._own[0].came_ns, line[0].came_ns) if self._own else line[0].came_ns

    def has_room(self, giver: str, queue_max: int) -> bool:
        """Whether this principal may have another one waiting, of `queue_max` in all."""
        line = self._lines.get(giver)
        return line is None or len(line) < SHARE * (queue_max - self._size)

    def add(self, giver: str, waiting: Waiting) -> None:
        """The last of its principal's."""
        self._size += 1
        if not giver:
            self._own.append(waiting)
            return
        line = self._lines.get(giver)
        if line is None:
            line = self._lines[giver] = deque()
            self._turns.append((giver, line))
        line.append(waiting)

    def take(self) -> Waiting:
        """The next. Raises IndexError where nothing waits."""
        turns = self._turns
        if self._own and (self._ahead < OWN_AHEAD or not turns):
            self._ahead += 1
            self._size -= 1
            return self._own.popleft()
        self._ahead = 0
        giver, line = turns[0]
        taken = line.popleft()
        self._size -= 1
        if not line:
            turns.popleft()
            del self._lines[giver]
        elif len(turns) > 1:
            turns.rotate(-1)
        return taken
