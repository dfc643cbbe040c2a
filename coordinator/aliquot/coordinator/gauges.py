"""Single numbers that the parts of a leading coordinator know: what it is busy with, and how much it keeps.

What is kept by design has a bound each (`limits` in the settings); these show how near it is, so that memory that grows
can be told from memory that fills up. They are read on the scraper's thread, one integer or length at a time.
"""

from __future__ import annotations

from collections.abc import Callable

from aliquot.coordinator.agents.relayed.service import RelayService
from aliquot.coordinator.agents.sessions import Sessions
from aliquot.coordinator.reading.watch import WatchHub
from aliquot.coordinator.upkeep.pulse import Pulse
from aliquot.coordinator.writing.writer import Writer

Gauge = tuple[str, str, Callable[[], float]]
"""(name, documentation, how to read it)."""


def gauges_of(writer: Writer, sessions: Sessions, relays: RelayService, hub: WatchHub, pulse: Pulse) -> list[Gauge]:
    """Those of all these parts."""

    def ledger_sums() -> int:
        state = writer.state
        return 0 if state is None else sum(map(len, list(state.ledger.hours.values()))) + len(state.ledger.closed)

    return [
        ("aliquot_writer_queue", "Commands that wait to be decided", lambda: writer.queued),
        ("aliquot_agent_sessions", "Agents that are connected", lambda: len(sessions)),
        ("aliquot_relays", "Relays that are connected", lambda: len(relays)),
        ("aliquot_relayed_agents", "Agents that are connected through them", lambda: relays.streams),
        ("aliquot_watchers", "Watch streams that are open", lambda: len(hub)),
        ("aliquot_watch_waiting", "Changes that wait in the watchers' queues", lambda: hub.waiting),
        ("aliquot_watch_kept", "Changes that are kept for watchers who come late", lambda: hub.kept),
        (
            "aliquot_set_aside",
            "Requests and due work on which deciding failed too often, until an administrator has them tried again",
            lambda: len(writer.set_aside),
        ),
        ("aliquot_granting", "1 while anything is granted", lambda: int(writer.granting)),
        ("aliquot_loop_lag_seconds", "How late the last regular beat was", lambda: pulse.lag_ms / 1000),
        (
            "aliquot_ledger_entries",
            "Usage, credits and corrections that are kept one by one",
            lambda: len(writer.state.ledger.entries) if writer.state is not None else 0,
        ),
        ("aliquot_ledger_sums", "Sums of usage by the hour and by the day", ledger_sums),
        (
            "aliquot_nodes_lent",
            "Nodes that serve another project than their own",
            lambda: len(writer.state.tenancy.loans) if writer.state is not None else 0,
        ),
    ]
