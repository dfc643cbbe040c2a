"""Quotas, prices and explanations of pools with cards of several vendors."""

from __future__ import annotations

import pytest

from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease, LeaseState
from aliquot.coordinator.core.books.ledger.rates import ModelRate, RateCard
from aliquot.coordinator.core.books.tenancy.limits import MILLIONTHS, covered
from aliquot.coordinator.core.books.tenancy.ranking import Sums
from aliquot.coordinator.core.books.tenancy.specs import Amount, ModelQuota, Quota, TenantSpec
from aliquot.coordinator.core.placement import Engine, Reason, make_policy
from aliquot.coordinator.core.values.errors import QuotaExceeded
from aliquot.coordinator.core.values.types import Demand, DeviceSpec, NodeSpec
from aliquot.coordinator.wire import tenancy as wire_tenancy
from aliquot.coordinator.wire.nodes import read_declared
from aliquot.v1 import admin_pb2, types_pb2
from tests.core.harness import GIB, Books, request
from tests.placement.pools import pool
from tests.tenancy.declaring import declare

CARDS = {"nvidia": ("A100-80", 80), "amd": ("MI300X", 192), "npu": ("910B4", 32)}


def node(vendor: str, devices: int = 4) -> NodeSpec:
    model, memory_gib = CARDS[vendor]
    return NodeSpec(
        node_id=f"n-{vendor}",
        name=vendor,
        devices=tuple(
            DeviceSpec(f"{vendor}-{index}", model, memory_gib * GIB, vendor=vendor, index=index)
            for index in range(devices)
        ),
    )


@pytest.fixture
def books() -> Books:
    books = Books()
    for vendor in CARDS:
        books.connect(node(vendor))
    return books


def ask(books: Books, **more: object) -> Lease:
    lease = books.allocate(request(**more))  # type: ignore[arg-type]
    books.settle()
    return books.again(lease)


@pytest.mark.parametrize("vendor", CARDS)
def test_a_request_for_a_vendor_goes_to_its_cards_only(books: Books, vendor: str) -> None:
    held = [ask(books, vendor=vendor, share_milli=500).slices[0].model for _ in range(8)]
    assert held == [CARDS[vendor][0]] * 8
    waiting = ask(books, vendor=vendor, share_milli=500)
    assert waiting.state is LeaseState.QUEUED, "and waits, while cards of others are free"


def test_the_second_vendor_is_taken_where_the_first_has_no_place(books: Books) -> None:
    """And the lease says so; models are chosen among those of the vendor that it is."""
    held = [ask(books, vendors=("amd", "nvidia")) for _ in range(6)]
    assert [lease.slices[0].model for lease in held] == ["MI300X"] * 4 + ["A100-80"] * 2
    assert held[0].note == ""
    assert held[4].note == "alternative 2 of 2 (NVIDIA)"
    named = ask(books, vendors=("npu", "nvidia"), models=(("A100-80", "910B3"),))
    assert named.slices[0].model == "A100-80"
    assert named.note == "alternative 2 of 2 (NVIDIA, A100-80, 910B3)"
    for _ in range(1 + 4):
        ask(books, vendors=("nvidia", "npu"))
    assert ask(books, vendors=("nvidia", "amd")).state is LeaseState.QUEUED, "all others' are free for others"


def test_the_second_vendor_is_taken_where_a_limit_forbids_the_first(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("amd", limit=Amount(1000, -1)),))))
    held = [ask(books, vendors=("amd", "nvidia")).slices[0].model for _ in range(3)]
    assert held == ["MI300X", "A100-80", "A100-80"]


def test_a_limit_on_a_vendor_holds_for_all_its_models_and_for_no_others(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("amd", limit=Amount(2000, -1)),))))
    assert ask(books, vendor="amd").state is LeaseState.GRANTED
    assert ask(books, models=(("MI300X",),)).state is LeaseState.GRANTED
    assert ask(books, models=(("MI300X",),)).state is LeaseState.QUEUED
    assert ask(books).slices[0].model != "MI300X", "without a wish it goes where there is room"
    assert ask(books, vendor="nvidia").state is LeaseState.GRANTED


@pytest.mark.parametrize("wish", [{"vendor": "amd"}, {"models": (("MI300X",),)}, {"models": (("MI300X", "MI250"),)}])
def test_above_the_limit_of_a_vendor_for_ever_is_refused_at_once(books: Books, wish: dict[str, object]) -> None:
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("amd", limit=Amount(2000, -1)),))))
    with pytest.raises(QuotaExceeded, match="holds 0 devices of amd and may hold 2; 3 more"):
        ask(books, count=3, **wish)


def test_a_limit_on_a_family_holds_for_its_sizes(books: Books) -> None:
    declare(books, TenantSpec("a", Quota(models=(ModelQuota("910B", limit=Amount(1000, -1)),))))
    assert ask(books, models=(("910B4",),)).state is LeaseState.GRANTED
    assert ask(books, models=(("910B4",),)).state is LeaseState.QUEUED


def test_a_guarantee_of_a_vendor_covers_its_models(books: Books) -> None:
    quota = Quota(models=(ModelQuota("amd", guaranteed=Amount(2000, 0)), ModelQuota("A100-80", Amount(1000, 0))))
    held = [Sums(1000, 0, {"amd": (1000, 0), "A100-80": (0, 0)})]
    assert covered(quota, held, [("MI300X", 1000, GIB)], MILLIONTHS)
    assert covered(quota, held, [("MI300X", 1000, GIB), ("A100-80", 1000, GIB)], MILLIONTHS)
    assert not covered(quota, held, [("MI300X", 1500, GIB)], MILLIONTHS)
    assert not covered(quota, held, [("MI300X", 600, GIB), ("MI210", 600, GIB)], MILLIONTHS), "together"
    assert not covered(quota, held, [("910B4", 100, GIB)], MILLIONTHS)


def test_the_owner_of_a_guarantee_of_a_vendor_gets_it_back(books: Books) -> None:
    declare(books, TenantSpec("owner", Quota(models=(ModelQuota("amd", guaranteed=Amount(4000, 0)),))))
    borrowed = ask(books, vendor="amd", count=4, tenant="b", preemptible=True)
    assert borrowed.state is LeaseState.GRANTED
    mine = ask(books, vendor="amd", tenant="owner")
    assert books.again(borrowed).state is LeaseState.PREEMPTING
    assert mine.state is LeaseState.QUEUED


def test_the_nearest_price_counts() -> None:
    rates = (ModelRate("*", 1), ModelRate("amd", 2), ModelRate("910B", 3), ModelRate("910B4", 4), ModelRate("npu", 5))
    for order in (rates, rates[::-1]):
        card = RateCard("EUR", order)
        prices = {
            model: found.gpu_hour_micro
            for model in ("A100-80", "MI300X", "MI210", "910B4", "910B3", "310P", "UNHEARD-OF")
            if (found := card.rate_of(model)) is not None
        }
        assert prices == {"A100-80": 1, "MI300X": 2, "MI210": 2, "910B4": 4, "910B3": 3, "310P": 5, "UNHEARD-OF": 1}
    assert RateCard("EUR", (ModelRate("amd", 2),)).rate_of("A100-80") is None


def test_use_is_charged_at_the_price_of_its_vendor(books: Books) -> None:
    books.do(c.Apply(rates=RateCard("EUR", (ModelRate("amd", 1_000_000), ModelRate("*", 9_000_000)), minimum_ms=1)))
    lease = ask(books, vendor="amd")
    books.report(lease, c.ReportStatus.ACTIVE)
    books.now_ms += 3_600_000
    books.do(c.Release(lease.lease_id))
    books.report(lease, c.ReportStatus.GONE)
    entries = [entry for entry in books.state.ledger.entries if entry.tenant == "a"]
    assert [entry.model for entry in entries] == ["MI300X"]


def test_why_names_the_vendor_as_the_obstacle() -> None:
    engine = Engine(pool(node("amd"), node("nvidia")), make_policy("binpack"))
    by_vendor = {m.device_class.split()[0]: m for m in engine.explain(Demand(vendor="npu")).missing}
    assert {m.reason for m in by_vendor.values()} == {Reason.OTHER_VENDOR}
    assert by_vendor["MI300X"].detail == "the request is for devices of Ascend; these are of AMD"
    assert by_vendor["A100-80"].smallest_change == "allow nvidia"
    either = {m.device_class.split()[0]: m for m in engine.explain(Demand(vendors=("npu", "amd"), count=5)).missing}
    assert either["A100-80"].detail == "the request is for devices of Ascend or AMD; these are of NVIDIA"
    assert either["MI300X"].reason == Reason.TOO_FEW_DEVICES_ON_NODE
    by_model = {m.device_class.split()[0]: m for m in engine.explain(Demand(models=(("910B4",),))).missing}
    assert {m.reason for m in by_model.values()} == {Reason.OTHER_MODEL}
    assert by_model["A100-80"].detail == "the request names 910B4, of Ascend; these are of NVIDIA"
    same = engine.explain(Demand(models=(("MI210",),)))
    assert "the request names MI210" in {m.detail for m in same.missing}, "there it is the model, not the vendor"
    short = {m.device_class.split()[0]: m for m in engine.explain(Demand(vendor="amd", count=5)).missing}
    assert short["MI300X"].reason == Reason.TOO_FEW_DEVICES_ON_NODE
    assert short["A100-80"].reason == Reason.OTHER_VENDOR


def test_devices_that_serve_one_program_at_a_time_are_leased_whole() -> None:
    tpus = NodeSpec(
        node_id="n-tpu",
        name="tpu",
        devices=tuple(DeviceSpec(f"TPU-{i}", "TPU-V5E", 16 * GIB, vendor="tpu", index=i) for i in range(4)),
    )
    engine = Engine(pool(tpus), make_policy("binpack"))
    assert engine.place(Demand(vendor="tpu", count=4, share_milli=1000)) is not None
    assert engine.place(Demand(share_milli=1000, memory_bytes=8 * GIB)) is not None
    for part in (Demand(share_milli=500), Demand(memory_bytes=8 * GIB)):
        assert engine.place(part) is None
        missing = engine.explain(part)
        assert [m.reason for m in missing.missing] == [Reason.WHOLE_ONLY]
        assert missing.impossible
        assert missing.missing[0].smallest_change == "ask for whole devices"


@pytest.mark.parametrize(
    ("declared", "vendor", "memory_gib"),
    [
        (types_pb2.Device(model="MLU370-X8"), "cambricon", 48),
        (types_pb2.Device(model="Ascend910B4"), "npu", 32),
        (types_pb2.Device(model="SX-1", vendor="enflame", memory_total_bytes=24 * GIB), "enflame", 24),
        (types_pb2.Device(model="SX-1", memory_total_bytes=24 * GIB), "nvidia", 24),
    ],
)
def test_a_declared_card_of_any_vendor_is_scheduled(declared: types_pb2.Device, vendor: str, memory_gib: int) -> None:
    spec = read_declared(types_pb2.Node(name="n", node_id="n", devices=[declared], agentless=True), "node")
    (device,) = spec.devices
    assert (device.vendor, device.memory_total_bytes) == (vendor, memory_gib * GIB)
    engine = Engine(pool(spec), make_policy("binpack"))
    assert engine.place(Demand(vendor=vendor, share_milli=500)) is not None


def test_a_declaration_may_use_any_of_a_vendors_names() -> None:
    quota = admin_pb2.Quota(models=[admin_pb2.ModelQuota(model="Ascend", limit=admin_pb2.Amount(share_milli=1000))])
    rates = admin_pb2.RateCard(rates=[admin_pb2.ModelRate(model="Huawei", gpu_hour_micro=5)])
    item = admin_pb2.TenantItem(spec=admin_pb2.TenantSpec(name="a", quota=quota))
    request = admin_pb2.ApplyRequest(tenants=[item], rates=rates)
    command = wire_tenancy.read_apply(request)
    assert [of_model.model for of_model in command.tenants[0][0].quota.models] == ["npu"]
    assert command.rates is not None
    assert command.rates.rate_of("910B4") == ModelRate("npu", 5)
