"""What a sign takes out of service: the device, its card, the cards of its island, or the whole node."""

from __future__ import annotations

import pytest

from aliquot.common.signs import Remedy, Scope, Severity
from aliquot.coordinator.core.books.health.cover import cards_of, devices_on, units_of
from aliquot.coordinator.core.books.health.records import Sign
from aliquot.coordinator.core.values.types import UNKNOWN, DeviceSpec, NodeSpec

DEVICES = (
    DeviceSpec("A", "A100-80", 80, nvlink_island=0),
    DeviceSpec("B1", "A100-80", 40, parent_uuid="B", nvlink_island=0),
    DeviceSpec("B2", "A100-80", 40, parent_uuid="B", nvlink_island=0),
    DeviceSpec("C", "A100-80", 80, nvlink_island=1),
    DeviceSpec("D", "A100-80", 80, nvlink_island=UNKNOWN),
)


@pytest.mark.parametrize(
    ("device", "scope", "remedy", "may_reboot", "units"),
    [
        (1, Scope.DEVICE, Remedy.RESET, False, ["B1"]),
        (1, Scope.CARD, Remedy.RESET, False, ["B"]),
        (0, Scope.CARD, Remedy.REBOOT, True, ["A"]),
        (0, Scope.ISLAND, Remedy.RESET, False, ["A", "B"]),
        (3, Scope.ISLAND, Remedy.RESET, False, ["C"]),
        (4, Scope.ISLAND, Remedy.RESET, False, ["D"]),
        (0, Scope.NODE, Remedy.RESET, False, ["A", "B", "C", "D"]),
        (0, Scope.NODE, Remedy.REBOOT, True, ["A", "B", "C", "D"]),
        (1, Scope.NODE, Remedy.REBOOT, False, ["B"]),
        (0, Scope.ISLAND, Remedy.REBOOT, False, ["A", "B"]),
        (1, Scope.DEVICE, Remedy.REBOOT, False, ["B1"]),
    ],
)
def test_a_sign_covers_what_it_says_and_a_node_only_where_that_can_be_restarted(
    device: int, scope: Scope, remedy: Remedy, may_reboot: bool, units: list[str]
) -> None:
    spec = NodeSpec("n", "n", DEVICES, remedies=("reset", "reboot") if may_reboot else ("reset",))
    sign = Sign("xid", Severity.FATAL, scope, remedy, "why")
    assert list(units_of(spec, DEVICES[device], sign)) == units


def test_devices_are_on_a_unit_as_themselves_or_as_its_parts() -> None:
    spec = NodeSpec("n", "n", DEVICES)
    assert list(cards_of(spec)) == ["A", "B", "C", "D"]
    assert [each.uuid for each in devices_on(spec, ["B", "C"])] == ["B1", "B2", "C"]
    assert [each.uuid for each in devices_on(spec, ["B2"])] == ["B2"]
    assert devices_on(spec, []) == []
