"""The last reading of each device is kept as it was said, whatever the contract has of fields."""

from __future__ import annotations

from typing import Any

from aliquot.coordinator.reading.telemetry import Telemetry
from aliquot.v1 import types_pb2


def test_every_field_of_the_contract_is_kept_in_its_own_devices_row() -> None:
    telemetry = Telemetry()
    fields = types_pb2.DeviceTelemetry.DESCRIPTOR.fields
    said = {
        uuid: types_pb2.DeviceTelemetry(**dict[str, Any]((field.name, base + field.number) for field in fields))
        for base, uuid in ((100, "GPU-a"), (200, "GPU-b"), (300, "GPU-c"))
    }
    for uuid, reading in said.items():
        telemetry.record(uuid, reading)
    assert {uuid: telemetry.device_message(uuid) for uuid in said} == said
    telemetry.record("GPU-b", types_pb2.DeviceTelemetry(power_mw=5))
    assert telemetry.device_message("GPU-a") == said["GPU-a"]
    assert telemetry.device_message("GPU-b") == types_pb2.DeviceTelemetry(power_mw=5)
    assert telemetry.device_message("GPU-c") == said["GPU-c"]
