"""What agents measure reaches the ledger as sums, exactly, and stands on the invoice beside what was reserved."""

from __future__ import annotations

from dataclasses import replace

from aliquot.cli import _invoices as invoices
from aliquot.client._messages import read
from aliquot.client.admin import Invoice
from aliquot.common.limits import GIB
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.leases.records import Lease
from aliquot.coordinator.reading.usage import MOST_MW, ObservedUse
from aliquot.coordinator.settings.config import AgentSettings
from aliquot.v1 import admin_pb2, admin_pb2_grpc, agent_pb2, types_pb2
from tests.coordinator.pool import Agent, agents, eventually, running, settings_for
from tests.core.harness import Books, node, request
from tests.manual_clock import ManualClock


class Measured:
    """The core's books, followed as the outbox does, on a clock of its own."""

    def __init__(self, began_ms: int = 1_000_000) -> None:
        self.books = Books()
        self.books.connect(node("one", 2))
        self.clock = ManualClock(began_ms)
        self.cards: dict[str, types_pb2.DeviceTelemetry] = {}
        self.use = ObservedUse(self.clock, self.books.state.leases.get, lambda uuid: 80 * GIB, self.cards.get)

    def run(self, tenant: str, share_milli: int = 500) -> Lease:
        return self.books.activate(self.books.allocate(request(share_milli, tenant=tenant)))

    def saw(self, lease: Lease, percent: int, gib: int, node_id: str = "n-one") -> None:
        message = agent_pb2.SliceUse(
            slice_id=lease.slices[0].slice_id, gpu_utilisation_percent=percent, observed_bytes=gib * GIB
        )
        self.use.saw(node_id, 1, message)

    def changed(self, lease: Lease) -> None:
        self.use.lease_changed(lease, self.books.state.leases.get(lease.lease_id))

    def taken(self) -> dict[str, tuple[int, int, int]]:
        return {o.tenant: (o.busy_milli_ms, o.memory_byte_ms, o.interval_ms) for o in self.use.take()}


def test_a_reading_holds_until_the_next_and_is_added_up_by_tenant() -> None:
    world = Measured()
    one, two, other = world.run("a"), world.run("a"), world.run("b")
    world.saw(one, 50, 4)
    world.saw(two, 10, 1)
    world.clock.advance(1_000)
    world.saw(one, 100, 8)
    world.saw(other, 0, 2)
    world.clock.advance(500)
    assert world.taken() == {
        "a": (500 * 1_000 + 1_000 * 500 + 100 * 1_500, (4 * 1_000 + 8 * 500 + 1 * 1_500) * GIB, 3_000),
        "b": (0, 2 * 500 * GIB, 500),
    }
    world.clock.advance(10)
    assert world.taken()["b"] == (0, 2 * 10 * GIB, 10), "from where the last sum ended"


def test_the_score_of_a_lease_is_about_its_own_part_and_unknown_where_that_is_not_told() -> None:
    world = Measured()
    half, whole = world.run("a"), world.run("b", 1000)
    assert world.use.score(half) is None
    busy = types_pb2.DeviceTelemetry(
        gpu_utilisation_percent=100, memory_utilisation_percent=50, power_mw=150_000, power_limit_mw=300_000
    )
    world.cards.update(dict.fromkeys(("GPU-one-0", "GPU-one-1"), busy))
    world.saw(half, 0, 0)
    assert world.use.score(half) == 0, "what its neighbour does with the card says nothing of it"
    world.saw(half, 50, 10)  # all of its half of the time, and half of its 20 GiB: (0.5 · 100 + 0.2 · 50) / 0.7
    assert world.use.score(half) == 85.7
    world.saw(whole, 50, 10)  # 25 + 0.2 · 50 of copies + 0.2 · 25 of memory + 0.1 · 50 of power
    assert world.use.score(whole) == 45.0
    world.use.saw("n-one", 1, agent_pb2.SliceUse(slice_id=half.slices[0].slice_id, observed_bytes=GIB))
    assert world.use.score(half) is None, "how busy it is is not told"


def test_nothing_is_measured_after_the_end_of_a_slice_or_of_what_is_not_on_the_node() -> None:
    world = Measured()
    lease = world.run("a")
    world.saw(lease, 50, 1, node_id="n-another")
    assert len(world.use) == 0
    world.saw(lease, 50, 1)
    world.clock.advance(100)
    world.books.do(c.NodeSilent("n-one", world.books.sessions["n-one"], lost=True))
    world.changed(lease)
    world.clock.advance(100)
    assert world.taken() == {"a": (500 * 100, 100 * GIB, 100)}
    assert world.taken() == {}


def test_a_reading_counts_that_was_here_before_its_slice_was_confirmed() -> None:
    # Nothing changes about an idle slice, so there is no second one.
    world = Measured()
    lease = world.books.allocate(request(500, tenant="a"))
    world.saw(lease, 0, 0)
    confirmed = world.books.activate(lease)
    world.use.lease_changed(lease, confirmed)
    world.clock.advance(100)
    assert world.use.score(confirmed) == 0
    assert world.taken() == {"a": (0, 0, 100)}


async def test_an_invoice_shows_it_beside_what_was_reserved() -> None:
    settings = settings_for(agents=AgentSettings(use_told_every=50))  # type: ignore[arg-type]
    async with running(settings) as pool:
        agent = Agent(pool.address, "node-1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=3)
            use = agent_pb2.SliceUse(
                slice_id=lease.slices[0].slice_id, gpu_utilisation_percent=25, observed_bytes=GIB, processes=1
            )
            report = agent_pb2.DeviceReport(uuid=agent.uuids[0], telemetry=types_pb2.DeviceTelemetry(), slices=[use])
            await agent.delta(report)
            admin = admin_pb2_grpc.AdminServiceStub(pool.channel)

            async def measured() -> admin_pb2.Invoice | None:
                request = admin_pb2.GetInvoiceRequest(tenant="team", from_ms=0, to_ms=1 << 50)
                invoice = await admin.GetInvoice(request)
                return invoice if int(invoice.observed_interval_ms) >= 200 else None

            invoice = await eventually(measured, "the ledger is told")
        interval = int(invoice.observed_interval_ms)
        assert int(invoice.observed_busy_milli_ms) == 250 * interval
        assert int(invoice.observed_memory_byte_ms) == GIB * interval
        assert sum(int(line.share_milli_ms) for line in invoice.lines) >= 500 * interval


def served(lease: Lease, up_bytes: int, down_bytes: int) -> types_pb2.ServedUse:
    return types_pb2.ServedUse(slice_id=lease.slices[0].slice_id, up_bytes=up_bytes, down_bytes=down_bytes)


def moved(world: Measured) -> dict[str, tuple[int, int]]:
    return {each.tenant: (each.up_bytes, each.down_bytes) for each in world.use.take()}


def test_bytes_moved_are_added_up_by_tenant_each_once() -> None:
    world = Measured(began_ms=0)
    lease = world.run("a")
    for up, down in ((100, 10), (100, 10), (150, 30)):
        world.use.saw_served("n-one", served(lease, up, down))
    assert moved(world) == {"a": (150, 30)}
    assert moved(world) == {}
    world.use.saw_served("n-one", served(lease, 40, 31))
    assert moved(world) == {"a": (40, 1)}, "a sum that has fallen is another process's"
    latest = world.use.served(lease.slices[0].slice_id)
    assert latest is not None
    assert (latest.up_bytes, latest.observed_ms) == (40, world.clock.now_ms())
    world.use.saw_served("n-two", served(lease, 999, 999))
    assert moved(world) == {}, "it is not on that node"
    world.books.do(c.NodeSilent("n-one", world.books.sessions["n-one"], lost=True))
    world.changed(lease)
    assert world.use.served(lease.slices[0].slice_id) is None


def test_what_had_moved_before_this_coordinator_began_is_not_counted_again() -> None:
    world = Measured(began_ms=1 << 50)
    lease = world.run("a")
    world.use.saw_served("n-one", served(lease, 1000, 1000))
    world.use.saw_served("n-one", served(lease, 1001, 1000))
    assert moved(world) == {"a": (1, 0)}


def test_bytes_are_not_counted_again_when_a_node_comes_back() -> None:
    world = Measured(began_ms=0)
    lease = world.run("a")
    world.use.saw_served("n-one", served(lease, 1000, 10))
    away_and_back(world, lease)
    world.use.saw_served("n-one", served(world.books.again(lease), 1500, 10))
    assert moved(world) == {"a": (1500, 10)}


def away_and_back(world: Measured, lease: Lease) -> None:
    """The lease's node is lost, and returns with it."""
    before = world.books.again(lease)
    world.books.do(c.NodeSilent("n-one", world.books.sessions["n-one"], lost=True))
    lost = world.books.again(lease)
    world.use.lease_changed(before, lost)
    piece = lease.slices[0]
    world.books.advance(60_000)
    world.books.connect(node("one", 2), (c.SliceReport(piece.slice_id, piece.lease_epoch, c.ReportStatus.ACTIVE, 2),))
    world.use.lease_changed(lost, world.books.again(lease))


def drew(world: Measured, lease: Lease, energy_mj: int | None, session: int = 1) -> int | None:
    """Its agent says it in a session; what is known of the lease's slice then."""
    slice_id = lease.slices[0].slice_id
    use = agent_pb2.SliceUse(slice_id=slice_id, observed_bytes=GIB, energy_mj=energy_mj)
    world.use.saw("n-one", session, use)
    return world.use.drawn_mj(slice_id)


def energy(world: Measured) -> dict[str, tuple[int, int]]:
    return {each.tenant: (each.energy_mj, each.energy_interval_ms) for each in world.use.take()}


def later() -> Measured:
    """A clock that shows an hour since the leases began: so much may have been drawn."""
    world = Measured(began_ms=0)
    world.clock.advance(4_600_000)
    return world


def test_energy_is_added_up_by_lease_and_tenant_also_over_restarts_of_the_agent() -> None:
    world = later()
    one, two = world.run("a"), world.run("a")
    assert drew(world, one, None) is None
    world.clock.advance(1_000)
    assert energy(world) == {"a": (0, 0)}, "not measured is no time in which nothing was drawn"
    assert [drew(world, one, mj) for mj in (100, 100, 250)] == [100, 100, 250]
    assert drew(world, two, 1_000) == 1_000
    world.clock.advance(500)
    assert energy(world) == {"a": (1_250, 1_000)}
    assert drew(world, one, 30, session=2) == 280, "a sum that has fallen is counted by an agent that was restarted"
    assert energy(world) == {"a": (30, 0)}
    away_and_back(world, one)
    assert drew(world, world.books.again(one), 50, session=3) == 300, "nothing is counted again"


def test_a_confirmation_that_comes_late_is_no_restart_of_the_agent() -> None:
    world = later()
    lease = world.run("a")
    assert [drew(world, lease, mj) for mj in (100, 250)] == [100, 250]
    waited = agent_pb2.SliceReport(slice_id=lease.slices[0].slice_id, energy_mj=100)
    assert world.use.reported("n-one", 1, waited) == 250, "it had to wait, or was sent again"
    assert [drew(world, lease, mj) for mj in (260, 300)] == [260, 300]
    assert drew(world, lease, 20, session=2) == 320
    assert world.use.reported("n-one", 1, waited) == 320
    assert energy(world)["a"][0] == 320


def test_a_coordinator_that_takes_over_counts_only_what_rises_and_knows_what_there_was() -> None:
    world = Measured(began_ms=1 << 50)
    lease = world.run("a")
    assert drew(world, lease, 5_000) == 5_000
    assert drew(world, lease, 5_100) == 5_100
    assert energy(world) == {"a": (100, 0)}


def test_no_agent_can_say_more_than_any_card_draws() -> None:
    world = Measured(began_ms=0)
    world.clock.advance(1_000_000)
    lease = world.run("a")
    world.clock.advance(2_000)
    most_mj = MOST_MW * (world.clock.now_ms() - lease.granted_ms) // 1000
    assert drew(world, lease, (1 << 64) - 1) == most_mj
    assert drew(world, lease, 5) == most_mj
    assert energy(world)["a"][0] == most_mj


def test_a_lease_that_is_over_keeps_what_was_drawn_for_it_in_the_journal() -> None:
    world = later()
    lease = world.run("a")
    drew(world, lease, 700)
    piece = lease.slices[0]
    world.books.do(c.Release(lease.lease_id))
    last = agent_pb2.SliceReport(slice_id=piece.slice_id, energy_mj=900)
    assert world.use.reported("n-two", 1, last) == 700, "it is not on that node"
    energy_mj = world.use.reported("n-one", 1, last)
    world.books.report(world.books.again(lease), c.ReportStatus.GONE, energy_mj=energy_mj)
    world.changed(lease)
    assert energy(world)["a"][0] == 900, "with what came after the last reading"
    assert world.use.reported("n-one", 1, last) is None
    for state in (world.books.state, world.books.replayed(), world.books.restored()):
        assert state.leases[lease.lease_id].energy_mj == 900
    unmeasured = world.run("a")
    world.books.do(c.Release(unmeasured.lease_id))
    world.books.report(world.books.again(unmeasured), c.ReportStatus.GONE)
    assert world.books.again(unmeasured).energy_mj is None


async def test_an_invoice_and_a_lease_show_energy_and_when_it_was_not_measured() -> None:
    settings = settings_for(agents=AgentSettings(use_told_every=50))  # type: ignore[arg-type]
    async with running(settings) as pool:
        agent = Agent(pool.address, "node-1")
        async with agents(agent):
            lease = await pool.allocate("0.5", wait_until=3)
            admin = admin_pb2_grpc.AdminServiceStub(pool.channel)

            async def said(energy_mj: int | None) -> Invoice:
                use = agent_pb2.SliceUse(slice_id=lease.slices[0].slice_id, observed_bytes=GIB, energy_mj=energy_mj)
                telemetry = types_pb2.DeviceTelemetry()
                await agent.delta(agent_pb2.DeviceReport(uuid=agent.uuids[0], telemetry=telemetry, slices=[use]))

                async def measured() -> admin_pb2.Invoice | None:
                    request = admin_pb2.GetInvoiceRequest(tenant="team", from_ms=0, to_ms=1 << 44)
                    invoice = await admin.GetInvoice(request)
                    known = int(invoice.observed_energy_mj) == (energy_mj or 0)
                    counted = int(invoice.observed_energy_interval_ms) > 0 or energy_mj is None
                    return invoice if int(invoice.observed_interval_ms) > 0 and known and counted else None

                return read(await eventually(measured, "the ledger is told"), Invoice)

            unknown = await said(None)
            assert "not measured" in " ".join(invoices.measured(unknown))
            assert "energy" not in invoices.as_csv(unknown)
            assert not (await pool.get(lease.lease_id)).HasField("energy_mj")
            known = await said(36_000)
            assert (await pool.get(lease.lease_id)).energy_mj == 36_000
        told = " ".join(invoices.measured(known))
        assert "0.0 Wh, of " in told, "of a part of the time only"
        assert ",energy_joules,,36," in invoices.as_csv(known)
        brief = replace(known, observed_energy_interval_ms=0)  # all of it came with the ends of leases
        assert "not measured" not in " ".join(invoices.measured(brief))
        assert ",energy_joules,,36," in invoices.as_csv(brief)
