"""What is under way in one direction of a session: numbered, bounded, sent again where a connection broke.

Pure: the two ends of a direction are a `Sending` and a `Receiving`. Whatever connections lose, repeat or cut short,
each frame is accepted exactly once and in order. The owner locks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from aliquot.remote.core.channel import FRAME_BYTES_MAX

BATCH_BYTES_MAX = FRAME_BYTES_MAX
"""Of the frames of one message together, unless it is a single one."""
BATCH_FRAMES_MAX = 1024
FRAME_COST_BYTES = 64
"""What a frame counts beside its bytes: a million empty ones are not free."""
TELL_AFTER_S = 0.02
"""How long what is done may wait to be acknowledged, where nothing else is sent."""


class WindowError(ValueError):
    """The other end breaks the rules: what it says can't be true, or is more than it may have under way."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be under way: sent, or waiting to be, and not acknowledged."""

    bytes_max: int = 64 << 20
    frames_max: int = 1 << 14


UP_LIMITS = Limits()
"""Of what a client may have under way, unless the server says otherwise."""
DOWN_LIMITS = Limits(bytes_max=256 << 20, frames_max=1 << 16)
"""Of answers that the client has not taken. An engine that answers more waits for it."""


class Sending:
    """The sender's end: frames that are not acknowledged, kept to be sent again."""

    __slots__ = ("_base", "_frames", "_held_bytes", "_limits", "_unsent")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._frames: deque[bytes] = deque()
        self._base = 0
        self._held_bytes = 0
        self._unsent = 0

    @property
    def acknowledged(self) -> int:
        """So many frames are done at the other end."""
        return self._base

    @property
    def end(self) -> int:
        """The number of the next frame."""
        return self._base + len(self._frames)

    @property
    def under_way_bytes(self) -> int:
        """What is held until it is acknowledged."""
        return self._held_bytes

    def limit(self, limits: Limits) -> None:
        """The other end has said how much it takes."""
        self._limits = limits

    def has_room(self, size: int) -> bool:
        """Whether a frame of `size` bytes may be added now. One alone may always."""
        if not self._frames:
            return True
        limits = self._limits
        return len(self._frames) < limits.frames_max and self._held_bytes + size + FRAME_COST_BYTES <= limits.bytes_max

    def add(self, frame: bytes) -> None:
        """Put a frame behind all others."""
        self._frames.append(frame)
        self._held_bytes += len(frame) + FRAME_COST_BYTES

    def has_unsent(self) -> bool:
        """Whether `take` gives something."""
        return self._unsent < self._base + len(self._frames)

    def take(self) -> tuple[int, list[bytes]]:
        """The next frames for one message, and the number of the first; none where all were sent."""
        first = self._unsent
        at, end = first - self._base, len(self._frames)
        taken: list[bytes] = []
        total = 0
        while at < end and len(taken) < BATCH_FRAMES_MAX:
            frame = self._frames[at]
            total += len(frame)
            if taken and total > BATCH_BYTES_MAX:
                break
            taken.append(frame)
            at += 1
        self._unsent = first + len(taken)
        return first, taken

    def acknowledge(self, done: int) -> int:
        """The other end has done so many frames. Returns how many of them are news. Raises `WindowError`."""
        if done > self._unsent:
            raise WindowError(f"{done} frames are acknowledged, of {self._unsent} that were sent")
        news = done - self._base
        for _ in range(news):
            self._held_bytes -= len(self._frames.popleft()) + FRAME_COST_BYTES
        self._base = max(self._base, done)
        return max(0, news)

    def resume(self, received: int) -> None:
        """On a new connection the other end has `received` frames: what follows is sent again. Raises `WindowError`."""
        if not self._base <= received <= self.end:
            raise WindowError(f"{received} frames were received, where {self._base} to {self.end} can have been")
        self._unsent = received


class Receiving:
    """The receiver's end: what was accepted, and how much of it is done."""

    __slots__ = ("_held_bytes", "_limits", "_told", "done", "received")

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.received = 0
        """So many frames were accepted, done or not."""
        self.done = 0
        """So many frames are done."""
        self._held_bytes = 0
        self._told = 0

    @property
    def held(self) -> int:
        """So many frames were accepted and are not done."""
        return self.received - self.done

    def accept(self, first: int, frames: Sequence[bytes]) -> list[bytes]:
        """Those of a message's frames that are new, to be done in this order. Raises `WindowError` where some are
        missing before them, one is too long, or more is under way than may be.
        """
        if first > self.received:
            raise WindowError(f"frame {first} came after {self.received} frames")
        new = list(frames[self.received - first :])
        size = sum(map(len, new))
        if any(len(frame) > FRAME_BYTES_MAX for frame in new):
            raise WindowError(f"a frame is longer than {FRAME_BYTES_MAX} bytes")
        held_bytes = self._held_bytes + size + len(new) * FRAME_COST_BYTES
        held = self.held + len(new)
        if held > 1 and (held > self._limits.frames_max or held_bytes > self._limits.bytes_max):
            raise WindowError("more is under way than the window allows")
        self.received += len(new)
        self._held_bytes = held_bytes
        return new

    def finish(self, frame: bytes) -> None:
        """The next one is done."""
        self.done += 1
        self._held_bytes -= len(frame) + FRAME_COST_BYTES

    def told(self) -> int:
        """What to acknowledge in a message that is sent now."""
        self._told = self.done
        return self.done

    def owes(self) -> bool:
        """Whether something is done that the other end was not told."""
        return self._told < self.done

    def owes_much(self, since_bytes: int) -> bool:
        """Whether the other end should be told at once, or it might stand still: `since_bytes` are done since."""
        return since_bytes * 4 >= self._limits.bytes_max or (self.done - self._told) * 4 >= self._limits.frames_max
