"""`health` and `device`: what is wrong with cards, how it has gone, and what people do about it."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from rich.table import Table

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._actions import action, run_action
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table, table_of
from aliquot.client import Pool
from aliquot.client.health import Health, Incident, Standing, UnknownSlice
from aliquot.common.duration import format_duration_ms

_CLOSED_SHOWN = 5
_UUIDS_SHOWN = 2


def _configure_health(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("incident", metavar="INCIDENT", nargs="?", type=int, default=0, help="its number: how it went")


def _health(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    health = pool.admin.health(args.incident)
    out.document(health)
    if args.incident:
        for incident in (*health.open, *health.closed):
            _show_story(out, incident)
    else:
        _show(out, health)


def _show(out: Out, health: Health) -> None:
    if health.open:
        out.show(_table(health.open))
    else:
        out.note("no card is out of service, and none on probation")
    for condition in health.conditions:
        out.note(f"the coordinator fails: {condition.subject}: {condition.text}")
    if health.unknown_slices:
        out.show(unknown_table(health.unknown_slices))
        out.note("the books do not know these slices: `aliquot node settle NODE` ends them")
    if health.closed:
        out.show(_table_of_closed(health.closed[:_CLOSED_SHOWN]))
    if health.causes:
        rows = [(each.cause, str(each.incidents), _time(each.out_ms)) for each in health.causes]
        out.show(table("CAUSE", ("INCIDENTS", "right"), ("CARDS OUT FOR", "right"), rows=rows))
    if health.mttr_ms is not None:
        p95 = "" if health.mttr_p95_ms is None else f", 95 % within {_time(health.mttr_p95_ms)}"
        mtbf = "" if health.mtbf_ms is None else f"; {_time(health.mtbf_ms)} between two of one card"
        out.show(f"mean time to repair {_time(health.mttr_ms)}{p95}{mtbf}")


def unknown_table(slices: Sequence[UnknownSlice]) -> Table:
    """What agents hold and the books do not know."""
    return table_of(
        slices,
        {
            "UNKNOWN SLICE": lambda each: each.slice_id,
            "NODE": lambda each: each.node_name,
            "DEVICE": lambda each: each.device_uuid,
            "SHARE": lambda each: words.share(each.share_milli),
            "MEMORY": lambda each: words.amount(each.memory_bytes),
        },
        right=("SHARE", "MEMORY"),
    )


def _table(incidents: Sequence[Incident]) -> Table:
    return table_of(
        incidents,
        {
            "INCIDENT": lambda each: str(each.number),
            "STATE": lambda each: _state(each.state),
            "SINCE": lambda each: words.age(each.since_ms),
            "AGE": lambda each: words.age(each.opened_ms),
            "NODE": lambda each: each.node_name,
            "CARDS": _cards,
            "CAUSE": lambda each: each.cause,
            "WAITS FOR": lambda each: each.waits_for,
        },
        right=("INCIDENT",),
    )


def _table_of_closed(incidents: Sequence[Incident]) -> Table:
    return table_of(
        incidents,
        {
            "OVER": lambda each: str(each.number),
            "WHEN": lambda each: words.age(each.closed_ms),
            "TOOK": lambda each: _time(each.back_ms - each.opened_ms) if each.back_ms else words.UNKNOWN,
            "NODE": lambda each: each.node_name,
            "CARDS": _cards,
            "CAUSE": lambda each: each.cause,
            "OUTCOME": lambda each: each.outcome,
        },
        right=("OVER",),
    )


def _show_story(out: Out, incident: Incident) -> None:
    where = f" on {incident.node_name}" if incident.node_name else ""
    out.show(
        f"incident {incident.number}: {incident.cause}{where}, {incident.severity.lower()}, {_cards(incident, 16)}"
    )
    rows = [(words.moment(step.at_ms), _state(step.state), step.text) for step in incident.steps]
    out.show(table("WHEN", "STATE", "WHAT", rows=rows))
    if incident.waits_for:
        out.show(f"it waits for {incident.waits_for}")


def _state(state: Standing) -> str:
    return "well" if state is Standing.UNSPECIFIED else state.lower()


def _cards(incident: Incident, shown: int = _UUIDS_SHOWN) -> str:
    named = " ".join(incident.uuids[:shown])
    more = len(incident.uuids) - shown
    return f"{named} and {more} more" if more > 0 else named


def _time(took_ms: int) -> str:
    return format_duration_ms(max(0, took_ms) // 1000 * 1000) if took_ms >= 1000 else f"{max(0, took_ms)}ms"


def _configure_device(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True, title="actions")
    quarantine = action(actions, "quarantine", "take a card out of service until it is returned", _device)
    quarantine.add_argument("--drain", action="store_true", help="also end its leases, each with its grace")
    quarantine.set_defaults(care=lambda admin, args: partial(admin.quarantine_device, drain=args.drain))
    verify = action(actions, "verify", "have a card tested once nothing holds it; well, it returns", _device)
    verify.set_defaults(care=lambda admin, _: admin.verify_device)
    returning = action(actions, "return", "take a card back into service", _device)
    returning.add_argument("--overrule", action="store_true", help="although its agent says that it is not well")
    returning.set_defaults(care=lambda admin, args: partial(admin.return_device, overrule=args.overrule))
    for each in (quarantine, verify, returning):
        each.add_argument("uuid", metavar="UUID", help="of the device, or of the card that it is a part of")
        each.add_argument("--reason", default="", help="for people")


def _device(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    incident: Incident | None = args.care(pool.admin, args)(args.uuid, reason=args.reason)
    out.document({"uuid": args.uuid, "incident": incident})
    if incident is None:
        out.show(f"{args.uuid} is in service")
    else:
        waits = f"; it waits for {incident.waits_for}" if incident.waits_for else ""
        out.show(f"{args.uuid} is {_state(incident.state)}, incident {incident.number}{waits}")


HEALTH = Work(_configure_health, options.on_pool(_health))
DEVICE = Work(_configure_device, run_action)
