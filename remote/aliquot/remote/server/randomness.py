"""A generator for each session, where operators draw from the process's own.

Several engines live in one process only in tests; a lease has a process of its own. The state is put in place when
another session drew last, so that the usual case costs a comparison.
"""

from __future__ import annotations

import threading

import torch

_LOCK = threading.RLock()
_last: Generator | None = None


def _of(device: torch.device) -> torch.Generator:
    if device.type == "cuda":
        torch.cuda.init()
        return torch.cuda.default_generators[device.index or 0]
    return torch.default_generator


class Generator:
    """A session's place in its sequence of random numbers. Used as a context around whatever draws."""

    __slots__ = ("_device", "_state")

    def __init__(self, device: torch.device, seed: int) -> None:
        self._device = device
        self._state = torch.Generator(device).manual_seed(seed).get_state()

    def __enter__(self) -> None:
        global _last  # noqa: PLW0603
        _LOCK.acquire()
        if _last is not self:
            if _last is not None:
                _last._state = _of(_last._device).get_state()
            _of(self._device).set_state(self._state)
            _last = self

    def __exit__(self, *_: object) -> None:
        _LOCK.release()

    def seed(self, seed: int) -> None:
        """Begin the sequence of a seed."""
        with self:
            _of(self._device).manual_seed(seed)

    def state(self) -> bytes:
        """The place in the sequence."""
        with self:
            return bytes(_of(self._device).get_state().numpy())

    def set_state(self, state: bytes) -> None:
        """Go to a place in the sequence.

        Raises:
            RuntimeError: it is no such place.
        """
        with self:
            _of(self._device).set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))

    def close(self) -> None:
        """Nobody will draw again."""
        global _last  # noqa: PLW0603
        with _LOCK:
            if _last is self:
                _last = None
