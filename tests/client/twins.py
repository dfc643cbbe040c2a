"""One set of tests for both twins: `AsyncPool` behind a thread that runs its event loop looks like `Pool`."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any

from aliquot.client import AsyncHeldLease, AsyncPool, Leasing


class Loop:
    """An event loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(60)
        except BaseException:
            future.cancel()
            raise

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


class Blocking:
    """Any object of the asyncio twin, with its coroutines and iterators made blocking."""

    def __init__(self, target: Any, loop: Loop) -> None:
        object.__setattr__(self, "_target", target)
        object.__setattr__(self, "_loop", loop)

    def __getattr__(self, name: str) -> Any:
        value = getattr(self._target, name)
        if not callable(value):
            return value
        return lambda *args, **kwargs: self._wrap(value(*args, **kwargs))

    def __enter__(self) -> Any:
        return self._wrap(self._target.__aenter__())

    def __exit__(self, *details: object) -> Any:
        return self._loop.run(self._target.__aexit__(*details))

    @property
    def env(self) -> Any:
        return self._wrap(self._target.environment())

    def _wrap(self, value: Any) -> Any:
        if isinstance(value, Leasing):
            value = self._loop.run(_awaited(value))
        elif inspect.isawaitable(value):
            value = self._loop.run(value)
        if isinstance(value, (AsyncHeldLease, AsyncPool)):
            return Blocking(value, self._loop)
        if hasattr(value, "__anext__"):
            return self._iterate(value)
        return value

    def _iterate(self, values: AsyncIterator[Any]) -> Iterator[Any]:
        try:
            while True:
                try:
                    yield self._loop.run(anext(values))
                except StopAsyncIteration:
                    return
        finally:
            self._loop.run(values.aclose())  # type: ignore[attr-defined]


async def _awaited(leasing: Leasing) -> AsyncHeldLease:
    return await leasing


def blocking_async_pool(loop: Loop, *args: Any, **kwargs: Any) -> Any:
    async def make() -> AsyncPool:
        return AsyncPool(*args, **kwargs)

    return Blocking(loop.run(make()), loop)
