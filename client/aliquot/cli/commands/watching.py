"""`watch`: changes as they happen."""

from __future__ import annotations

import argparse
import datetime as dt

from rich.text import Text

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.client import Event, LeaseChanged, NodeChanged, Pool


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lease_ids", nargs="*", metavar="LEASE", help="only these leases")
    parser.add_argument("--tenant", "-t", default="", help="only leases of this tenant")
    parser.add_argument("--nodes", action="store_true", help="changes of nodes too")
    parser.add_argument(
        "--after", type=int, default=0, metavar="SEQ", help="from this sequence number on (default: now)"
    )


def _watch(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    events = pool.watch(tenant=args.tenant, lease_ids=args.lease_ids, nodes=args.nodes, after_seq=args.after)
    try:
        for event in events:
            if out.as_json:
                out.line(_plain(event))
            else:
                out.show(_line(event))
    finally:
        events.close()  # type: ignore[attr-defined]  # it is a generator


def _plain(event: Event) -> dict[str, object]:
    if isinstance(event, LeaseChanged):
        return {"event": "lease", "seq": event.seq, "at_ms": event.at_ms, "lease": event.lease}
    if isinstance(event, NodeChanged):
        return {"event": "node", "seq": event.seq, "at_ms": event.at_ms, "node": event.node}
    return {"event": "resynced", "seq": event.seq, "leases": event.leases}


def _line(event: Event) -> Text:
    if isinstance(event, LeaseChanged):
        lease = event.lease
        text = _stamp(event.seq, event.at_ms).append_text(Text.assemble((f"{lease.lease_id}  ", "bold")))
        text.append_text(words.state(lease.state))
        text.append(f"  {lease.tenant}  {lease.gpu}  {words.where(lease.slices)}")
        if lease.end_reason:
            text.append(f"  {lease.end_reason.lower()} {lease.end_detail}".rstrip(), style="bright_black")
        return text
    if isinstance(event, NodeChanged):
        node = event.node
        text = _stamp(event.seq, event.at_ms).append_text(Text.assemble((f"{node.name}  ", "bold")))
        text.append_text(words.state(node.state)).append(words.closed(node), style="yellow")
        return text.append(f"  {node.reason}".rstrip(), style="bright_black")
    return Text(f"{event.seq:>8}  changes were missed; {len(event.leases)} live leases", style="yellow")


def _stamp(seq: int, at_ms: int) -> Text:
    moment = dt.datetime.fromtimestamp(at_ms / 1000, tz=dt.UTC).astimezone()
    return Text(f"{seq:>8}  {moment:%H:%M:%S.%f}"[:-3] + "  ", style="bright_black")


WATCH = Work(_configure, options.on_pool(_watch))
