"""The duties of an agent: what it perceives its machine by, above all."""

from __future__ import annotations

KERNEL_LOG = "kernel-log"
DRIVER_EVENTS = "driver-events"
DRIVER = "driver"
DEVICES = "devices"
"""Looking for them: what is refused then is not seen to come or go."""
SIGNALLING = "signals"
"""Whether programs can be ended."""
CGROUPS = "cgroups"
MPS = "mps"
CERTIFICATE = "certificate"
"""What it shows, and what it is known by, is valid and can be read."""
RECORDS = "records"
"""What it holds is on disk, and would be known after a restart."""
