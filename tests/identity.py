"""Who the tests are: the administrator of every coordinator that they start, unless a test is about somebody else.

Each coordinator is told the same token (`access.admin_token_file`), programs of the tests find it in their environment,
and stubs that are made here send it with every call.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import grpc
import grpc.aio

from aliquot.common.tokens import bearer
from aliquot.coordinator.settings.config import AccessSettings

ADMIN_TOKEN = f"alq_{'7e57' * 3}_{'0123456789abcdef' * 4}"
_FOLDER = Path(tempfile.gettempdir()) / f"aliquot-tests-{os.getuid()}"
ADMIN_TOKEN_VARIABLE = "ALIQUOT_COORDINATOR_ACCESS_ADMIN_TOKEN_FILE"
TOKEN_FILE = _FOLDER / "admin.token"


def be_administrator() -> None:
    """Let coordinators that are started from here, and clients, know the token."""
    _FOLDER.mkdir(mode=0o700, exist_ok=True)
    new = _FOLDER / f".admin.token.{os.getpid()}"
    new.touch(mode=0o600)
    new.write_text(ADMIN_TOKEN + "\n")
    new.replace(TOKEN_FILE)
    os.environ[ADMIN_TOKEN_VARIABLE] = str(TOKEN_FILE)
    os.environ["ALIQUOT_TOKEN"] = ADMIN_TOKEN


def access(**fields: Any) -> AccessSettings:
    """Settings of a coordinator within the test's own process."""
    return AccessSettings(admin_token_file=TOKEN_FILE, **fields)


def insecure_channel(
    address: str, options: Sequence[tuple[str, Any]] | None = None, *, token: str = ADMIN_TOKEN
) -> Any:
    """A channel whose calls show this token."""
    return with_token(grpc.aio.insecure_channel(address, options), token)


def with_token(channel: Any, token: str = ADMIN_TOKEN) -> Any:
    """The same channel, whose calls show this token."""
    return _Identified(channel, token)


class _Identified:
    def __init__(self, channel: Any, token: str) -> None:
        self._channel = channel
        self._token = bearer(token)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._channel, name)

    async def __aenter__(self) -> Self:
        await self._channel.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._channel.__aexit__(*error)

    def __enter__(self) -> Self:
        self._channel.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._channel.__exit__(*error)

    def _call(self, kind: str, *args: Any, **kwargs: Any) -> Any:
        call = getattr(self._channel, kind)(*args, **kwargs)

        def identified(*args: Any, metadata: Any = (), **kwargs: Any) -> Any:
            return call(*args, metadata=metadata or (self._token,), **kwargs)

        return identified

    def unary_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("unary_unary", *args, **kwargs)

    def unary_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("unary_stream", *args, **kwargs)

    def stream_unary(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("stream_unary", *args, **kwargs)

    def stream_stream(self, *args: Any, **kwargs: Any) -> Any:
        return self._call("stream_stream", *args, **kwargs)


# Whoever imports this starts coordinators: the tests, the fuzzer, the simulation, the benchmarks.
be_administrator()
