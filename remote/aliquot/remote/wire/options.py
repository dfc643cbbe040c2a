"""How gRPC is set on both ends."""

from __future__ import annotations

from typing import Final

from aliquot.common.channels import noticing, proxies
from aliquot.remote.core.window import BATCH_BYTES_MAX

MESSAGE_BYTES_MAX: Final = BATCH_BYTES_MAX + (256 << 10)
"""A batch of frames and what is around them."""
CERTIFICATE_NAME: Final = "aliquot-remote"
"""In every server's certificate: which one it is, its digest says."""
_ALIVE_MS: Final = 10_000

_BOTH: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    # A connection on which nothing comes back is given up, and the session goes on over another.
    *noticing(every_ms=_ALIVE_MS // 2, within_ms=_ALIVE_MS // 2),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_frame_size", 1 << 20),
)
CLIENT_OPTIONS: Final = (
    *_BOTH,
    ("grpc.enable_retries", 0),
    # A connection that nobody accepts is given up as soon, not after gRPC's 20 s.
    ("grpc.min_reconnect_backoff_ms", _ALIVE_MS // 2),
    *proxies(),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.ssl_target_name_override", CERTIFICATE_NAME),
)
SERVER_OPTIONS: Final = (
    *_BOTH,
    ("grpc.http2.min_ping_interval_without_data_ms", _ALIVE_MS // 4),
    # On a machine that is very busy pings come in bunches; with gRPC's two strikes honest clients were sent away.
    ("grpc.http2.max_ping_strikes", 100),
    ("grpc.max_metadata_size", 8 << 10),
    ("grpc.max_concurrent_streams", 8),
    ("grpc.so_reuseport", 0),
    ("grpc.server_handshake_timeout_ms", 10_000),
)
