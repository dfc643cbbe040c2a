"""Channels to servers behind Unix sockets, as Kubernetes' have them."""

from __future__ import annotations

from pathlib import Path

import grpc


def unix_channel(path: Path, *, max_bytes: int = 4 << 20) -> grpc.aio.Channel:
    """A channel of its own connection. Go's servers refuse the path that gRPC would give as the authority."""
    options = (
        ("grpc.default_authority", "localhost"),
        ("grpc.max_receive_message_length", max_bytes),
        ("grpc.use_local_subchannel_pool", 1),
    )
    return grpc.aio.insecure_channel(f"unix:{path}", options=options)
