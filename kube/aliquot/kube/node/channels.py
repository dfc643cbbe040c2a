"""Channels to servers behind Unix sockets, as Kubernetes' have them, and servers there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import grpc

S = TypeVar("S")


def unix_channel(path: Path, *, max_bytes: int = 4 << 20) -> grpc.aio.Channel:
    """A channel of its own connection. Go's servers refuse the path that gRPC would give as the authority."""
    options = (
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)


async def listen(socket: Path, add: Callable[[S, grpc.aio.Server], None], servicer: S) -> grpc.aio.Server:
    """A server there, in place of what an earlier one has left. Raises `OSError`, `RuntimeError`."""
    await asyncio.to_thread(socket.unlink, missing_ok=True)
    server = grpc.aio.server()
    add(servicer, server)
    server.add_insecure_port(f"unix:{socket}")
    await server.start()
    return server
