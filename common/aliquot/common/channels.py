"""Options of gRPC that every channel and server of ours shares: how a peer that is gone is noticed, and proxies.

A library's options are believed by what they do: `tests/common/test_channels.py` freezes a server and waits.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

Options = tuple[tuple[str, int], ...]

PROXY_VARIABLE: Final = "grpc_proxy"
"""gRPC's own variable. `http_proxy` is for the web: a company's proxy refuses addresses of the inner network."""


def noticing(every_ms: int, within_ms: int) -> Options:
    """Notice within `every_ms + within_ms` that the other side has stopped answering, though its connection stands.

    gRPC counts an unanswered ping by `ping_timeout_ms` (60 s unless set) in versions from 1.66 on, by
    `keepalive_timeout_ms` before, so both are set.
    """
    return (
        ("grpc.keepalive_time_ms", every_ms),
        ("grpc.keepalive_timeout_ms", within_ms),
        ("grpc.http2.ping_timeout_ms", within_ms),
    )


def proxies(env: Mapping[str, str] | None = None) -> Options:
    """No proxy, unless `grpc_proxy` asks for one."""
    env = os.environ if env is None else env
    return () if env.get(PROXY_VARIABLE) else (("grpc.enable_http_proxy", 0),)
