"""Whatever the server keeps for a program: known by a number, until it is given back."""

from __future__ import annotations

from aliquot.remote.cuda.link import Link


class Held:
    """A thing on the device elsewhere."""

    __slots__ = ("__weakref__", "_handle", "_link")

    def __init__(self, link: Link, handle: int) -> None:
        self._link = link
        self._handle = handle

    @property
    def handle(self) -> int:
        """The number by which the server knows it. Raises `ValueError` after `close`."""
        if not self._handle:
            raise ValueError("it was given back")
        return self._handle

    def close(self) -> None:
        """Give it back, once what was queued before is done."""
        handle, self._handle = self._handle, 0
        if handle:
            self._link.let_go(handle)


class Dropped(Held):
    """One that is given back, too, when nobody has it any more."""

    __slots__ = ()

    def __del__(self) -> None:
        self.close()
