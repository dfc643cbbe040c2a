"""Every call of the contract can be made from the SDK and, where a person would make it, from the command line."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from aliquot.cli import _options as options
from aliquot.cli._exits import Exit
from aliquot.cli.main import main
from aliquot.client import NodeDeclaration, Pool, access, admin, health, supply
from aliquot.client._messages import read, write
from aliquot.client._methods import Method
from aliquot.v1 import (
    access_pb2,
    admin_pb2,
    agent_pb2,
    enrolment_pb2,
    leases_pb2,
    pool_pb2,
    supply_pb2,
    types_pb2,
)

SERVICES = [
    service
    for module in (access_pb2, admin_pb2, agent_pb2, supply_pb2, enrolment_pb2, leases_pb2, pool_pb2)
    for service in module.DESCRIPTOR.services_by_name.values()
]
NOT_FOR_CLIENTS = {
    "AgentService.Session": "agents keep it open",
    "EnrolmentService.Join": "nodes join by `aliquot-agent join`",
}
SECONDS = 0.001


class Call(NamedTuple):
    """How a program makes a call, and a person; an empty command, with the reason, where a person would not."""

    program: Callable[[Pool], object]
    command: str
    why_none: str = ""
    ends: Exit = Exit.OK


LEASE = "l-0123456789abc"
USER = access.Role.USER
CALLS = {
    "LeaseService.Allocate": Call(lambda pool: pool.allocate("1", wait_s=SECONDS), "alloc 1"),
    "LeaseService.GrantOn": Call(lambda pool: pool.grant_on("1", "n", wait_s=SECONDS), "alloc 1 --on n:GPU-1"),
    "LeaseService.AllocateBatch": Call(lambda pool: pool.allocate_batch(["1"]), "", "launchers batch; a shell loops"),
    "LeaseService.Explain": Call(lambda pool: pool.explain("1"), "why 1"),
    "LeaseService.KeepAlive": Call(lambda pool: pool.hold(pool.get(LEASE)), "", "`run` keeps its own lease alive"),
    "LeaseService.Release": Call(lambda pool: pool.release(LEASE), f"release {LEASE}"),
    "LeaseService.ReleaseBatch": Call(lambda pool: pool.release_batch([LEASE]), "", "`release` takes several"),
    "LeaseService.AcknowledgeShape": Call(lambda pool: pool.acknowledge(LEASE, 1), f"ack {LEASE} --shape 1"),
    "LeaseService.Get": Call(lambda pool: pool.get(LEASE), f"get {LEASE}"),
    "LeaseService.GetTimeline": Call(lambda pool: pool.timeline(LEASE), f"get {LEASE} --timeline"),
    "LeaseService.List": Call(lambda pool: list(pool.leases()), "ls"),
    "EnrolmentService.InviteNode": Call(lambda pool: pool.access.invite_node("n"), "node invite n"),
    "EnrolmentService.DisenrolNode": Call(lambda pool: pool.access.disenrol_node("n"), "node disenrol n"),
    "LeaseService.GetUse": Call(lambda pool: pool.use(), "waste"),
    "LeaseService.ExemptLease": Call(lambda pool: pool.exempt(LEASE, 60), f"exempt {LEASE} --for 1m"),
    "LeaseService.ExtendLease": Call(lambda pool: pool.extend(LEASE, 7200), f"extend {LEASE} --to 2h"),
    "LeaseService.ConfirmNotice": Call(
        lambda pool: pool.confirm_notice(LEASE, 1), "", "`aliquot notify` makes it when it has delivered a warning"
    ),
    "LeaseService.Watch": Call(lambda pool: next(pool.watch()), "watch", ends=Exit.INTERRUPTED),
    "PoolService.DeclareNodes": Call(lambda pool: pool.declare([NodeDeclaration("n")]), "declare -f FILE"),
    "PoolService.RemoveNode": Call(lambda pool: pool.remove_node("n"), "forget n"),
    "PoolService.GetNode": Call(lambda pool: pool.node("n"), "nodes n"),
    "PoolService.ListNodes": Call(lambda pool: list(pool.nodes()), "nodes"),
    "PoolService.ListDevices": Call(lambda pool: list(pool.devices()), "", "`nodes --devices` shows them by node"),
    "PoolService.Fits": Call(lambda pool: pool.fits("1", ["n"]), "fits 1 --node n"),
    "PoolService.Cordon": Call(lambda pool: pool.cordon("n"), "cordon n"),
    "PoolService.Uncordon": Call(lambda pool: pool.uncordon("n"), "uncordon n"),
    "PoolService.Drain": Call(lambda pool: pool.drain("n"), "drain n"),
    "PoolService.GetStatus": Call(lambda pool: pool.status(), "status"),
    "PoolService.WatchFleet": Call(lambda pool: next(pool.watch_fleet()), "", "screens draw it; `top` shows a node"),
    "PoolService.Forecast": Call(lambda pool: pool.forecast(), "forecast"),
    "PoolService.GetHealth": Call(lambda pool: pool.admin.health(), "health"),
    "PoolService.SettleSlices": Call(lambda pool: pool.admin.settle_slices("n1"), "node settle n1"),
    "PoolService.QuarantineDevice": Call(
        lambda pool: pool.admin.quarantine_device("GPU-1", drain=True), "device quarantine GPU-1 --drain --reason r"
    ),
    "PoolService.VerifyDevice": Call(lambda pool: pool.admin.verify_device("GPU-1"), "device verify GPU-1"),
    "PoolService.ReturnDevice": Call(lambda pool: pool.admin.return_device("GPU-1"), "device return GPU-1"),
    "AdminService.Apply": Call(lambda pool: pool.admin.apply(admin.Declarations()), "apply -f FILE"),
    "AdminService.Withdraw": Call(lambda pool: pool.admin.withdraw("tenant", "t"), "withdraw tenant t"),
    "AdminService.GetTenancy": Call(lambda pool: pool.admin.tenancy(), "tenants"),
    "AdminService.RetrySetAside": Call(lambda pool: pool.admin.retry_set_aside(), "set-aside --retry"),
    "AdminService.Forgive": Call(lambda pool: pool.admin.forgive("t"), "forgive t"),
    "SupplyService.DeclareSupply": Call(lambda pool: pool.supply.declare(supply.SupplySpec()), "supply apply FILE"),
    "SupplyService.GetSupply": Call(lambda pool: pool.supply.get(), "supply"),
    "SupplyService.TakeOrders": Call(lambda pool: pool.supply.take("t"), "supply run --hook true --once"),
    "SupplyService.ReportOrder": Call(
        lambda pool: pool.supply.report(1, "t", accepted=True), "", "`supply run` says what came of it"
    ),
    "SupplyService.WithdrawOrder": Call(lambda pool: pool.supply.withdraw(1), "supply cancel 1"),
    "SupplyService.ExpectDemand": Call(lambda pool: pool.supply.expect(()), "", "programs forecast"),
    "AdminService.DeclareMaintenance": Call(
        lambda pool: pool.admin.declare_maintenance(admin.MaintenanceWindow("w")),
        "maintenance add w --start 2026-01-01T00:00 --end 2026-01-01T01:00",
    ),
    "AdminService.EndMaintenance": Call(lambda pool: pool.admin.end_maintenance("w"), "maintenance rm w"),
    "AdminService.ListMaintenance": Call(lambda pool: pool.admin.maintenance(), "maintenance ls"),
    "AdminService.GetInvoice": Call(lambda pool: pool.admin.invoice("t", from_ms=0, to_ms=1), "invoice t"),
    "AdminService.PostCredit": Call(
        lambda pool: pool.admin.post_credit("t", 1, reference="r"), "credit t 1 --reference r"
    ),
    "AdminService.CorrectUsage": Call(
        lambda pool: pool.admin.correct_usage("t", queue="q", model="L4", share_milli_ms=-(1 << 70), reference="r"),
        "correct t --queue q --model L4 --gpu-hours=-1 --reference r",
    ),
    "AdminService.CloseBooks": Call(lambda pool: pool.admin.close_books(86_400_000), "close-books 2026-01-01"),
    "AccessService.WhoAmI": Call(lambda pool: pool.access.whoami(), "whoami"),
    "AccessService.GrantRole": Call(
        lambda pool: pool.access.grant_role("ann", USER, scope="t"), "access grant ann user --tenant t"
    ),
    "AccessService.RevokeRole": Call(
        lambda pool: pool.access.revoke_role("ann", USER, scope="t"), "access revoke ann user --tenant t"
    ),
    "AccessService.ListPrincipals": Call(lambda pool: pool.access.principals(), "access ls"),
    "AccessService.IssueToken": Call(
        lambda pool: pool.access.issue_token("ann", grants=[access.RoleGrant(USER, "t")], ttl_ms=1000),
        "access token ann --role user --tenant t --ttl 30d --note n",
    ),
    "AccessService.RevokeTokens": Call(
        lambda pool: pool.access.revoke_tokens(["0123456789ab"]), "access token revoke 0123456789ab"
    ),
    "AccessService.ListTokens": Call(lambda pool: pool.access.tokens(), "access token ls"),
    "AccessService.ListAudit": Call(lambda pool: pool.access.audit(since_ms=1), "access audit --who ann --since 1h"),
    "AccessService.ListDenials": Call(lambda pool: pool.access.denials(), "access denials"),
    "AccessService.GetAuthority": Call(lambda pool: pool.access.authority(), "access authority pem"),
    "AccessService.ListAuthority": Call(lambda pool: pool.access.authority_use(), "access authority ls"),
    "AccessService.RotateAuthority": Call(lambda pool: pool.access.rotate_authority(), "access authority rotate"),
    "AccessService.RetireAuthority": Call(
        lambda pool: pool.access.retire_authority(force=True), "access authority retire --force"
    ),
    "AccessService.DescribeLogin": Call(
        lambda pool: pool.access.describe_login(), "", "`login` asks, and goes on to the provider: tests/logins"
    ),
    "AccessService.Login": Call(lambda pool: pool.access.login(id_token="x"), "", "`login` does, see there"),
    "AccessService.Bootstrap": Call(
        lambda pool: pool.access.bootstrap(), "access bootstrap --socket admin.sock --coordinator localhost:7070"
    ),
}


class Recorder:
    """A coordinator that agrees to everything, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self._heard = threading.Condition()

    def unary(self, method: Method[Any, Any], request: Message, address: str, timeout_s: float) -> Message:
        del request, address, timeout_s
        return self._answer(method)

    def watch(self, method: Method[Any, Any], request: Message, address: str) -> Any:
        del request, address
        return _Stream([self._answer(method)])

    def exchange(self, method: Method[Any, Any], address: str) -> Any:
        del address
        self._answer(method)
        return _Exchange()

    def close(self) -> None:
        """Nothing to drop."""

    def _answer(self, method: Method[Any, Any]) -> Message:
        _, service, name = method.path.replace(".v1.", "/").rsplit("/", 2)
        with self._heard:
            self.asked.append(f"{service}.{name}")
            self._heard.notify_all()
        answer: Any = method.answer()
        fields = answer.DESCRIPTOR.fields_by_name
        if "lease" in fields:
            answer.lease.lease_id, answer.lease.state = LEASE, types_pb2.LEASE_STATE_ACTIVE
        if "explanation" in fields:
            answer.explanation.fits_now = True
        if isinstance(answer, pool_pb2.FitsResponse):
            answer.nodes.add(node_id="n", score=1)
        if isinstance(answer, pool_pb2.FleetEvent):
            answer.resets = True
        return cast("Message", answer)

    def heard(self, name: str) -> bool:
        """Whether this was asked, by this thread or soon by another."""
        with self._heard:
            return self._heard.wait_for(lambda: name in self.asked, timeout=30)


class _Stream:
    def __init__(self, answers: list[Message]) -> None:
        self._answers = answers

    def __iter__(self) -> Iterator[Message]:
        yield from self._answers
        raise KeyboardInterrupt

    def cancel(self) -> None:
        """Over already."""


class _Exchange:
    def send(self, request: Message) -> None:
        """Heard."""

    def receive(self, timeout_s: float) -> Message | None:
        del timeout_s
        return None

    def cancel(self) -> None:
        """Over already."""


def names() -> list[str]:
    return [f"{service.name}.{method.name}" for service in SERVICES for method in service.methods]


def test_each_call_is_known_here() -> None:
    assert set(CALLS) | set(NOT_FOR_CLIENTS) == set(names())
    assert [name for name, call in CALLS.items() if not call.command and not call.why_none] == []


@pytest.mark.parametrize("name", CALLS)
def test_a_program_can_make_it(name: str) -> None:
    recorder: Any = Recorder()
    with Pool("nowhere:1", transport=recorder, agent_sockets=()) as pool:
        CALLS[name].program(pool)
        assert recorder.heard(name)


@pytest.mark.parametrize("name", [name for name, call in CALLS.items() if call.command])
@pytest.mark.parametrize("as_json", [False, True], ids=["people", "json"])
def test_a_person_can_make_it(
    name: str, as_json: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder: Any = Recorder()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    pool = partial(Pool, "nowhere:1", transport=recorder, agent_sockets=())
    monkeypatch.setattr(options, "open_pool", lambda *_, **__: pool())
    file = tmp_path / "file.yaml"
    file.write_text(next((text for word, text in FILES.items() if word in name), "tenants: [{name: t}]"))
    words = [str(file) if word == "FILE" else word for word in CALLS[name].command.split()]
    assert main([*words, "--json"] if as_json else words) == CALLS[name].ends
    assert name in recorder.asked
    if as_json and name != "LeaseService.Watch":  # a line for each event
        assert isinstance(json.loads(capsys.readouterr().out), dict)


FILES = {
    "Nodes": "nodes: [{name: n, devices: [{model: L4}]}]",
    "Supply": "shapes: [{name: s, model: L4, devices: 1, max: 1}]",
}


def _kinds(kind: Any, contract: Any) -> Iterator[tuple[Any, Descriptor]]:
    descriptor = contract.DESCRIPTOR.message_types_by_name.get(SAME_AS.get(kind.__name__, kind.__name__))
    if descriptor is not None:
        yield kind, descriptor


SAME_AS = {
    "Applied": "ApplyResponse",
    "LoginOffer": "DescribeLoginResponse",
    "Maintenance": "MaintenanceView",
}
DECLARED = {
    supply.SupplySpec,
    admin.PoolSpec,
    admin.TenantSpec,
    admin.QueueSpec,
    admin.RateCard,
    admin.MaintenanceWindow,
}
VALUES = [
    pair
    for module, contract in ((admin, admin_pb2), (access, access_pb2), (supply, supply_pb2), (health, pool_pb2))
    for kind in vars(module).values()
    if dataclasses.is_dataclass(kind) and kind is not admin.Declarations
    for pair in _kinds(kind, contract)
]


def test_every_message_of_administrators_has_a_value() -> None:
    asked_with = {"Request", "Response", "Item"}
    messages = {*admin_pb2.DESCRIPTOR.message_types_by_name, *access_pb2.DESCRIPTOR.message_types_by_name}
    left = messages - {descriptor.name for _, descriptor in VALUES}
    assert [name for name in left if not any(name.endswith(word) for word in asked_with)] == []


@pytest.mark.parametrize(("kind", "descriptor"), VALUES, ids=lambda item: getattr(item, "__name__", ""))
def test_a_value_has_every_field_and_loses_none(kind: Any, descriptor: Any) -> None:
    fields = {field.name for field in dataclasses.fields(kind)}
    assert fields == {field.name for field in descriptor.fields}
    message = _full(descriptor)
    value = read(message, kind)
    assert [name for name in fields if not getattr(value, name)] == []
    if kind in DECLARED:
        assert write(value, type(message)()) == message


def _full(descriptor: Any) -> Message:
    """A message with something in each field."""
    message: Any = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key_type = field.message_type.fields_by_name["value"].cpp_type
            getattr(message, field.name)["k"] = "v" if key_type == FieldDescriptor.CPPTYPE_STRING else 5
        elif field.message_type is not None:
            inner = _full(field.message_type)
            target = getattr(message, field.name)
            target.add().CopyFrom(inner) if field.is_repeated else target.CopyFrom(inner)
        elif field.is_repeated:
            text = field.cpp_type == FieldDescriptor.CPPTYPE_STRING
            getattr(message, field.name).extend(["a", "b"] if text else [5, 6])
        else:
            setattr(message, field.name, _some(field))
    return cast("Message", message)


def _some(field: Any) -> object:
    if field.enum_type is not None:
        return 2
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return "1180591620717411303424"  # a sum, which knows no bound
    return True if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 7
