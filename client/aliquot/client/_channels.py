"""How channels to a coordinator are set up, the same for both transports."""

from __future__ import annotations

from aliquot.common.channels import noticing, proxies

MESSAGE_BYTES_MAX = 64 * 1024 * 1024
"""The largest answer that is accepted; a page of 1,000 nodes with 16 devices each is about a tenth of it."""
OPTIONS: tuple[tuple[str, int | str], ...] = (
    ("grpc.primary_user_agent", "aliquot-python"),
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    # Retries are done in `_retrying`, which knows idempotency keys, leaders and the caller's deadline. So grpc must
    # neither repeat calls nor wait up to two minutes to reconnect after a coordinator's restart.
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    # Two pools in one process must not share a broken connection.
    ("grpc.use_local_subchannel_pool", 1),
    # A machine that is gone does not close its connections; without this, streams would wait for ever.
    *noticing(every_ms=6_000, within_ms=4_000),
    *proxies(),
)
