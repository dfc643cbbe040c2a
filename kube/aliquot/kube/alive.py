"""A process without a port says by a file that its event loop turns: a probe looks at how old the file is."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from aliquot.common.tasks import beside

_EVERY_S: Final = 10.0


@contextlib.asynccontextmanager
async def alive(file: str) -> AsyncIterator[None]:
    """Touch the file from time to time meanwhile; without a name nothing is written. Raises OSError."""
    if not file:
        yield
        return
    await asyncio.to_thread(Path(file).touch)
    async with beside("alive", _keep(Path(file))):
        yield


async def _keep(file: Path) -> None:
    while True:
        await asyncio.sleep(_EVERY_S)
        await asyncio.to_thread(file.touch)
