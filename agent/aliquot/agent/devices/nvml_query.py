"""Questions to NVML: what a driver does not offer is not an error, and is not asked again.

`Query.ask` answers None where a driver, a device or our rights don't offer something, and remembers it. Errors that say
the device is in trouble are raised as `DeviceLost`, others as `DeviceError`. pynvml also raises exceptions that are no
`NVMLError` (a version mismatch) and, for an empty success, an `NVMLError` of code 0.
"""

from __future__ import annotations

from collections.abc import Callable
from ctypes import Array, Structure, c_uint
from typing import Any, TypeVar

import pynvml

from aliquot.agent.devices.base import DeviceError, DeviceLost

T = TypeVar("T")

NOT_OFFERED = frozenset(
    {
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
    }
)
"""Will not change while the driver is loaded."""

ABSENT = frozenset({pynvml.NVML_SUCCESS, pynvml.NVML_ERROR_NOT_FOUND, pynvml.NVML_ERROR_NO_DATA})
"""Nothing there now; may be later."""

_NOT_ALLOWED = str(pynvml.NVMLError(pynvml.NVML_ERROR_NO_PERMISSION))

LOST = frozenset({pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED})


_SPARE = 8
_ENTRIES_MAX = 4096


class Query:
    """One per backend. Keys of what is remembered are (device, question)."""

    def __init__(self) -> None:
        self.calls = 0
        """Calls into the library so far, for measuring what a poll costs."""
        self._not_offered: dict[tuple[str, str], str] = {}
        self._sizes: dict[tuple[str, str], int] = {}
        """How long lists were when they were asked for last."""

    def listed(
        self, device: str, symbol: str, structure: type[Structure], call: Callable[[Any, Array[Any], c_uint], int]
    ) -> list[Any]:
        """A list of the library's, in one call where it is no longer than last time. Raises `pynvml.NVMLError`.

        `call` is given the function, room for the entries, and how many there is room for.
        """
        function = getattr(pynvml.nvmlLib, symbol, None)
        if function is None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        size = self._sizes.get((device, symbol), _SPARE)
        while True:
            count, entries = c_uint(size), (structure * size)()
            result = call(function, entries, count)
            if result != pynvml.NVML_ERROR_INSUFFICIENT_SIZE or size >= _ENTRIES_MAX:
                break
            self.calls += 1
            size = min(_ENTRIES_MAX, max(count.value, size) + _SPARE)
        self._sizes[device, symbol] = size
        if result != pynvml.NVML_SUCCESS:
            raise pynvml.NVMLError(result)
        return entries[: count.value]

    def ask(self, device: str, question: str, call: Callable[..., T], *args: object, remember: bool = True) -> T | None:
        """The answer, or None where it is not offered (remembered) or absent (not remembered).

        What is remembered is of `device` and `question` alone, so together they must name what was asked: an index or
        a link that differs makes another question.

        Raises `DeviceLost` and `DeviceError`.
        """
        if (device, question) in self._not_offered:
            return None
        self.calls += 1
        try:
            return call(*args)
        except pynvml.NVMLError as error:
            if error.value in NOT_OFFERED:
                if remember:
                    self._not_offered[device, question] = str(error)
                return None
            if error.value in ABSENT:
                return None
            kind = DeviceLost if error.value in LOST else DeviceError
            raise kind(f"{question}: {error}") from error
        except pynvml.NVMLLibraryMismatchError as error:
            self._not_offered[device, question] = str(error)
            return None

    def demand(self, device: str, question: str, call: Callable[..., T], *args: object) -> T:
        """Like `ask`, where no answer is an error."""
        answer = self.ask(device, question, call, *args)
        if answer is None:
            why = self._not_offered.get((device, question), "no answer")
            raise DeviceError(f"{question}: {why}")
        return answer

    def unless_refused(self, device: str, question: str, call: Callable[..., T], *args: object) -> T | None:
        """Like `ask`, where "not offered" would mean another device: that we may not ask is an error here."""
        answer = self.ask(device, question, call, *args)
        if answer is None and self._not_offered.get((device, question)) == _NOT_ALLOWED:
            raise DeviceError(f"{question}: {_NOT_ALLOWED}")
        return answer

    def offers(self, device: str, question: str) -> bool:
        """False when the driver is known not to offer this."""
        return (device, question) not in self._not_offered

    def forget(self) -> None:
        """The devices may have changed: ask everything again."""
        self._not_offered.clear()


def text(value: str | bytes) -> str:
    """A string of pynvml, which answers bytes or text depending on its version."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
