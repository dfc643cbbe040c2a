"""The ground of `Pool.access`, `Pool.admin` and `Pool.capacity`: calls whose arguments are the fields of a message."""

from __future__ import annotations

from typing import Any, TypeVar

from aliquot.client._async.runner import AsyncRunner
from aliquot.client._flow import Context, send
from aliquot.client._messages import read
from aliquot.client._methods import Method

T = TypeVar("T")


class AsyncCalls:
    """Calls of one pool."""

    def __init__(self, context: Context, timeout_s: float, runner: AsyncRunner) -> None:
        self._context = context
        self._timeout_s = timeout_s
        self._run = runner.run

    async def _send(self, method: Method[Any, Any], **fields: object) -> Any:  # noqa: ANN401 - the method's answer
        """Make a call with these fields in its message."""
        return await self._run(send(self._context, method, self._timeout_s, **fields))

    async def _ask(self, kind: type[T], method: Method[Any, Any], **fields: object) -> T:
        """The same, and read the answer as a value."""
        return read(await self._send(method, **fields), kind)
