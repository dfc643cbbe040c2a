"""Sums of what leases do follow each change, and end where they began."""

from __future__ import annotations

from msgspec.structs import replace

from aliquot.common.gauges import LABELS_MAX, OTHER
from aliquot.coordinator.core.books.use import LeaseUse, UseState
from aliquot.coordinator.reading.use_totals import UseTotals
from tests.coordinator.pool import running


def read(totals: UseTotals) -> dict[tuple[str, str], float]:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): sample.value
        for family in totals.collect()
        for sample in family.samples
    }


async def test_they_follow_each_change() -> None:
    async with running() as pool:
        await pool.declare(1)
        lease_id = (await pool.allocate("0.5", tenant="lab")).lease_id
        (known,) = (lease for lease in pool.coordinator.view.leases.values() if lease.lease_id == lease_id)
    totals = UseTotals([known])
    assert read(totals)["aliquot_leases_by_use", "UNKNOWN"] == 1
    idle = replace(known, use=LeaseUse(UseState.IDLE, warned=2, lent=True))
    totals.lease_changed(known, idle)
    found = read(totals)
    assert found["aliquot_leases_by_use", "UNKNOWN"] == 0
    assert found["aliquot_leases_by_use", "IDLE"] == 1
    assert found["aliquot_use_share_milli", "IDLE"] == 500
    assert found["aliquot_tenant_quiet_share_milli", "lab"] == 500
    assert found["aliquot_lent_share_milli", ""] == 500
    assert found["aliquot_idle_warnings_total", ""] == 2
    totals.lease_changed(idle, replace(idle, ended_ms=1))
    found = read(totals)
    assert {name: value for name, value in found.items() if value} == {("aliquot_idle_warnings_total", ""): 2}
    assert ("aliquot_tenant_quiet_share_milli", "lab") not in found
    several = [
        replace(idle, lease_id=f"l-{number}", request=replace(idle.request, tenant=f"t{number}"))
        for number in range(LABELS_MAX + 3)
    ]
    found = read(UseTotals(several))
    assert found["aliquot_tenant_quiet_share_milli", OTHER] == 3 * 500
    assert sum(name == "aliquot_tenant_quiet_share_milli" for name, _ in found) == LABELS_MAX + 1
