"""Messages and facts as lines for people: what the protocol is about, without times, telemetry and random numbers."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from aliquot.v1 import agent_pb2, leases_pb2, pool_pb2, types_pb2
from tests.simulation.sim.calls import Status
from tests.simulation.sim.launchers import reason_of

GIB = 1 << 30
NODE_STATES = {1: "DECLARED", 2: "RECONCILING", 3: "READY", 4: "SUSPECT", 5: "LOST"}
_LEASE = re.compile(r"l-[a-z0-9]{13}")
_GPU = re.compile(r"GPU-0*([0-9a-f]{1,8})-0000-4000-8000-0*([0-9a-f]{1,12})")
_facts = msgspec.msgpack.Decoder(list[list[Any]])


class Names:
    """Leases have random ids: they are numbered in the order in which they are seen."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def plain(self, text: str) -> str:
        """The text with plain names in it."""
        text = _LEASE.sub(lambda found: f"lease-{self._numbers.setdefault(found[0], len(self._numbers) + 1)}", text)
        return _GPU.sub(lambda found: f"gpu-{int(found[1], 16)}.{int(found[2], 16)}", text)


def facts(payload: bytes) -> list[str]:
    """The facts of a durable record."""
    return [f"durable: {text}" for fact in _facts.decode(payload) if (text := _fact(fact))]


def _fact(fact: list[Any]) -> str:
    tag, rest = fact[0], fact[2:]
    if tag == "node":
        return f"node {rest[0]['node_id']} with {len(rest[0]['devices'])} devices"
    if tag == "nstate":
        return f"nstate {rest[0]} {NODE_STATES[rest[1]]}"
    if tag == "queued":
        return f"queued {rest[0]} of tenant {rest[2]['tenant']}" + (f" key {rest[3]}" if rest[3] else "")
    if tag == "granted":
        return f"granted {rest[0]} lease_epoch {rest[1]}: {', '.join(_grant(*grant) for grant in rest[2])}"
    if tag == "active":
        return f"active {rest[1]}"
    if tag in ("gone", "failed"):
        return " ".join([tag, rest[1], *(word for word in rest[2:3] if word and isinstance(word, str))])
    if tag == "adopted":
        return f"adopted on {rest[0]}: {', '.join(rest[1])}"
    if tag == "cordon":
        return f"cordon {rest[0]} {'closed' if rest[1] else 'open'}"
    if tag == "leader":
        return f"leader {rest[0]}"
    return " ".join([tag, *(word for word in rest if isinstance(word, str) and word)])


def _grant(slice_id: str, member: int, plan: dict[str, Any]) -> str:
    where = f" member {member}" if member else ""
    return f"{slice_id}{where} on {plan['device_uuid']} {_part(plan['share_milli'], plan['memory_bytes'])}"


def _part(share_milli: int, memory_bytes: int) -> str:
    return f"{share_milli} milli {memory_bytes / GIB:.4g}Gi"


def _session(epoch: int) -> str:
    """The leader under which it was given, and the number under that leader."""
    return f"{epoch >> 32}.{epoch & 0xFFFFFFFF}"


def from_agent(data: bytes) -> str:
    """Empty for what only measures: heartbeats and deltas."""
    message = agent_pb2.AgentMessage.FromString(data)
    kind = message.WhichOneof("message")
    if kind == "hello":
        return f"hello, obeyed leader_epoch {message.hello.leader_epoch}"
    if kind == "snapshot":
        held = _reports(message.snapshot.slices)
        return f"snapshot of {len(message.snapshot.node.devices)} devices, holding {held or 'nothing'}"
    if kind == "reports":
        return f"reports on session {_session(message.reports.session_epoch)}: {_reports(message.reports.reports)}"
    return "" if kind in ("heartbeat", "delta") else str(kind)


def _reports(reports: Any) -> str:
    return ", ".join(
        " ".join(filter(None, (report.slice_id, agent_pb2.SliceStatus.Name(report.status)[13:], report.reason)))
        for report in reports
    )


def from_coordinator(data: bytes) -> str:
    """One line."""
    message = agent_pb2.CoordinatorMessage.FromString(data)
    kind = message.WhichOneof("message")
    if kind == "welcome":
        return f"welcome, session {_session(message.welcome.session_epoch)} of leader {message.welcome.leader_epoch}"
    if kind == "desired":
        desired = message.desired
        orders = [_order(order) for order in desired.slices]
        told = "; ".join(orders) or "nothing"
        settled = f"; settled {', '.join(desired.settled)}" if desired.settled else ""
        whole = "all that is desired" if desired.full else "desired"
        return f"{whole} on session {_session(desired.session_epoch)}: {told}{settled}"
    if kind == "goodbye":
        return f"goodbye: {message.goodbye.reason}"
    return str(kind)


def _order(order: agent_pb2.DesiredSlice) -> str:
    state = agent_pb2.DesiredState.Name(order.state)[14:]
    return f"{state} {order.slice_id} {_part(order.share_milli, order.memory_bytes)}" + (
        f" ({order.reason})" if order.reason else ""
    )


def answer(method: str, result: bytes | Status) -> str:
    """What a call came to."""
    if isinstance(result, Status):
        return f"{result.code.name} {reason_of(result)}".rstrip()
    if method in ("Allocate", "GrantOn"):
        return lease(leases_pb2.AllocateResponse.FromString(result).lease)
    if method == "Fits":
        found = pool_pb2.FitsResponse.FromString(result).nodes
        return ", ".join(f"{fit.node_id} {fit.score or fit.reason}" for fit in found)
    if method == "Release":
        return lease(leases_pb2.ReleaseResponse.FromString(result).lease)
    if method == "Get":
        return lease(types_pb2.Lease.FromString(result))
    return "OK"


def lease(shown: types_pb2.Lease) -> str:
    """As a launcher sees it."""
    state = types_pb2.LeaseState.Name(shown.state)[12:]
    ended = f" ({shown.end_reason})" if shown.end_reason else ""
    held = ", ".join(
        f"{piece.slice_id} {types_pb2.SliceState.Name(piece.state)[12:]} on {piece.device_uuid}"
        for piece in shown.slices
    )
    return f"{shown.lease_id} {state}{ended}" + (f": {held}" if held else "")
