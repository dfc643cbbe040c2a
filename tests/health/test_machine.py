"""A hostile month for cards: signs, orders and people in any order; the books stay exact, and no card is stuck."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule
from msgspec.structs import replace

from aliquot.common.signs import Scope
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.health.records import OUT, Standing
from aliquot.coordinator.core.known.config import CoreConfig
from aliquot.coordinator.core.values.types import DeviceSpec, NodeState
from tests.core.harness import GIB, node, request
from tests.core.machine import BooksMachine, walks
from tests.health.cards import ALL, HOT, REMAP, WORN, XID_79, XID_95

pytestmark = pytest.mark.no_cover

PARTS = tuple(
    DeviceSpec(f"MIG-{i}", "A100-40", 10 * GIB, mig_profile="1g.10gb", parent_uuid="GPU-card", compute_milli=142)
    for i in range(2)
)
SPECS = {
    "one": node("one", 3, remedies=ALL),
    "two": node("two", 2),
    "parts": replace(node("parts"), devices=PARTS, remedies=("reset", "verify")),
}
UUIDS = {device.uuid: spec.node_id for spec in SPECS.values() for device in spec.devices}
BY_HAND = (c.QuarantineDevice, c.VerifyDevice, c.ReturnDevice)
SIGNS = (HOT, REMAP, WORN, XID_79, XID_95, replace(HOT, scope=Scope.DEVICE), replace(XID_95, scope=Scope.ISLAND), None)


class HealthMachine(BooksMachine):
    """Whatever agents say and people do."""

    def __init__(self) -> None:
        super().__init__(CoreConfig(probation_ms=120_000), SPECS.values())

    def say(self, uuid: str, sign: object) -> None:
        node_id = UUIDS[uuid]
        said = {} if sign is None else {n: getattr(sign, n) for n in ("reason", "cause", "severity", "scope", "remedy")}
        epoch = self.books.sessions[node_id]
        self.books.do(c.ReportDevice(node_id, epoch, uuid, 0, healthy=sign is None, **said))

    @rule(uuid=st.sampled_from(sorted(UUIDS)), sign=st.sampled_from(SIGNS))
    def sign(self, uuid: str, sign: object) -> None:
        self.say(uuid, sign)

    @rule(uuid=st.sampled_from(sorted(UUIDS)))
    def an_agent_that_names_no_cause(self, uuid: str) -> None:
        node_id = UUIDS[uuid]
        self.books.do(c.ReportDevice(node_id, self.books.sessions[node_id], uuid, 0, healthy=False, reason="?"))

    @rule(name=st.sampled_from(sorted(SPECS)), problem=st.sampled_from(["", "", "it did not help"]))
    def obey(self, name: str, problem: str) -> None:
        node_id = f"n-{name}"
        for order in self.books.state.nodes[node_id].care[:1]:
            self.books.do(c.ReportCare(node_id, self.books.sessions[node_id], order.number, problem))

    @rule(name=st.sampled_from(sorted(SPECS)), fewer=st.booleans(), older=st.booleans())
    def connect(self, name: str, fewer: bool, older: bool) -> None:
        spec = SPECS[name]
        spec = replace(spec, devices=spec.devices[: -1 if fewer else None], remedies=() if older else spec.remedies)
        self.books.connect(spec, self.said(spec.node_id, c.ReportStatus.ACTIVE))

    @rule(name=st.sampled_from(sorted(SPECS)))
    def lose(self, name: str) -> None:
        self.books.do(c.NodeSilent(f"n-{name}", self.books.sessions[f"n-{name}"], lost=True))

    @rule(
        uuid=st.sampled_from(sorted(UUIDS)), kind=st.sampled_from([c.QuarantineDevice, c.VerifyDevice, c.ReturnDevice])
    )
    def by_hand(self, uuid: str, kind: type[c.QuarantineDevice]) -> None:
        self.refused(kind(uuid, by="user:ann"))

    @rule(uuid=st.sampled_from(sorted(UUIDS)))
    def overrule(self, uuid: str) -> None:
        self.refused(c.ReturnDevice(uuid, by="user:ann", overrule=True))

    @rule(uuid=st.sampled_from(sorted(UUIDS)), pick=st.integers(0))
    def hit(self, uuid: str, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            node_id = UUIDS[uuid]
            epoch = self.books.sessions[node_id]
            self.books.do(c.ReportHit(node_id, epoch, uuid, lease.lease_id, "XID 31", suspicious=True))

    @rule(share=st.sampled_from([250, 1000]), tenant=st.sampled_from("ab"), soft=st.booleans(), movable=st.booleans())
    def allocate(self, share: int, tenant: str, soft: bool, movable: bool) -> None:
        self.books.allocate(request(share, tenant=tenant, preemptible=soft, movable=movable))
        self.books.settle()

    @rule(pick=st.integers(0))
    def release(self, pick: int) -> None:
        lease = self.some_lease(pick)
        if lease is not None:
            self.books.do(c.Release(lease.lease_id))

    @rule()
    def agents_catch_up(self) -> None:
        self.catch_up()

    @rule(milliseconds=st.sampled_from([1, 6_000, 120_000, 3_600_000]))
    def time_passes(self, milliseconds: int) -> None:
        self.books.advance(milliseconds)

    @invariant()
    def nothing_new_is_on_a_card_that_is_out(self) -> None:
        state = self.books.state
        for lease in state.leases.values():
            for piece in lease.current:
                device = state.devices.get(piece.plan.device_uuid)
                if device is not None and device.standing in OUT and lease.granted_ms:
                    incident = state.health.incidents[device.incident]
                    assert lease.granted_ms <= incident.since_ms or incident.state is Standing.QUARANTINED

    def teardown(self) -> None:
        """Its cause gone and its orders obeyed, every card returns but for those that wait for a person."""
        for name, spec in SPECS.items():
            self.books.connect(spec, self.said(spec.node_id, c.ReportStatus.ACTIVE))
            assert self.books.state.nodes[f"n-{name}"].state is NodeState.READY
        for uuid in UUIDS:
            self.say(uuid, None)
        for lease in list(self.books.state.leases.values()):
            self.books.do(c.Release(lease.lease_id))
        for _ in range(40):
            self.catch_up()
            self.books.advance(600_000)
            for name in SPECS:
                self.obey(name, "")
        self.books.advance(86_400_000)
        for name in SPECS:
            self.obey(name, "")
        self.books.advance(600_000)
        for incident in self.books.state.health.incidents.values():
            assert incident.state is Standing.SERVICE or incident.by, f"it is stuck: {incident}"
        super().teardown()


HealthMachine.TestCase.settings = walks(30, 40)
TestHealth = HealthMachine.TestCase
