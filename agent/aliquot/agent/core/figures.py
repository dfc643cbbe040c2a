"""What processes that serve leases count: they belong to tenants, so only what is named here is passed on."""

from __future__ import annotations

from typing import Final

FIGURES: Final = {
    "sessions": "Programs that use the lease from elsewhere.",
    "ops_total": "Operations that were done for them.",
    "waits_total": "Operations for whose result a program waited.",
    "up_bytes_total": "Bytes that came from them.",
    "down_bytes_total": "Bytes that went to them.",
    "resumed_total": "Connections that broke and were resumed.",
    "refused_total": "Connections that were refused.",
    "run_ahead_frames": "Frames that have come and are not done.",
    "memory_bytes": "Device memory that they hold, as the service counts it.",
}
"""What a service may say of itself, and what it is."""
