"""The bounds that clients, the coordinator and agents share.

Exceeding one is an error that names the limit; nothing is cut off silently. Units are in the names.
"""

from __future__ import annotations

from typing import Final

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40

# A GPU request.
WHOLE_SHARE_MILLI: Final = 1000
"""A whole device, in thousandths."""
MAX_REQUEST_TEXT_CHARS: Final = 256
MAX_SLICES_PER_REQUEST: Final = 1024
"""What the request grammar reads. The service's bound is `MAX_SLICES_PER_MEMBER`: a member is on one node."""
MAX_SLICES_PER_MEMBER: Final = 64
MAX_SLICE_MEMORY_BYTES: Final = 16 * TIB
MAX_MODEL_PREFERENCES: Final = 32
MAX_MODELS_PER_SET: Final = 32
MAX_MODEL_CHARS: Final = 64

# What surrounds it.
MAX_GANG_SIZE: Final = 4096
MIN_PRIORITY: Final = -1000
MAX_PRIORITY: Final = 1000
MAX_LABELS: Final = 64
MAX_LABEL_CHARS: Final = 63
MAX_LABEL_PREFIX_CHARS: Final = 253
MAX_NAME_CHARS: Final = 128
MAX_REASON_CHARS: Final = 256
MAX_TENANT_CHARS: Final = 128
MAX_POOL_CHARS: Final = 63
MAX_NODE_CHARS: Final = 253
MAX_DEVICE_UUID_CHARS: Final = 128
MAX_IDEMPOTENCY_KEY_CHARS: Final = 128
MAX_NODE_IDS_PER_REQUEST: Final = 1000

# Time.
DEFAULT_LEASE_TTL_S: Final = 60
MAX_LEASE_TTL_S: Final = 7 * 24 * 3600
DEFAULT_GRACE_S: Final = 30
MAX_GRACE_S: Final = 24 * 3600
MAX_TIME_LIMIT_S: Final = 366 * 24 * 3600
DEFAULT_WAIT_MS: Final = 30_000
MAX_WAIT_MS: Final = 3_600_000
DEFAULT_WAIT_GONE_MS: Final = 60_000

# Messages.
MAX_MESSAGE_BYTES: Final = 4 * MIB
MAX_LOCAL_MESSAGE_BYTES: Final = MIB
MAX_BATCH_ITEMS: Final = 256
DEFAULT_PAGE_SIZE: Final = 100
MAX_PAGE_SIZE: Final = 1000
MAX_KEEPALIVE_IDS: Final = 10_000
MAX_WATCHED_LEASES: Final = 1000
MAX_DECLARED_NODES: Final = 1000
MAX_FITS_NODES: Final = 5000
MAX_SLICE_REPORTS: Final = 1000
MAX_DEVICES_PER_NODE: Final = 256
MAX_NODES: Final = 40_000
"""That a pool knows, whether their agents are connected or not."""
ADDRESSES_MAX: Final = 64
"""Of coordinators, that a node or a person is told of."""
