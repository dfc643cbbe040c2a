"""What SIGHUP may change of a coordinator at once: what earlier decisions do not depend on, such as the log level,
time-outs, and bounds of queues.
"""

from __future__ import annotations

LIVE = frozenset(
    {
        "log_level",
        "log_json",
        "access.burst",
        "access.requests_per_s",
        "access.streams_max",
        "agents.idle_window",
        "agents.use_looked_at_every",
        "agents.use_told_every",
        "elastic.idle",
        "elastic.rest",
        "limits.commands_queued_max",
        "limits.commands_wait_max",
        "limits.requests_queued_max",
        "mig.patience",
        "mig.rest",
    }
)
"""Settings that change without a restart; docs/operations.md lists them."""
