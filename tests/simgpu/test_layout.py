"""C and Python agree about every byte of the scenario file."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.simgpu import layout
from tests.simgpu.conftest import NATIVE

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "scenario": layout.ScenarioFile,
    "sim_device": layout.Device,
    "sim_account": layout.Account,
    "sim_profile": layout.Profile,
    "sim_gpu_instance": layout.GpuInstance,
    "sim_compute_instance": layout.ComputeInstance,
    "sim_link": layout.Link,
    "sim_event": layout.Event,
    "sim_rule": layout.Rule,
    "sim_limit": layout.Limit,
    "sim_holder": layout.Holder,
    "sim_shared": layout.Shared,
}


def test_every_field_has_the_same_offset_and_size(tmp_path: Path) -> None:
    lines = [f'#include "{NATIVE}/common/scenario.h"', "#include <stddef.h>", "#include <stdio.h>", "int main(void) {"]
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        for field, *_ in structure._fields_:
            lines.append(
                f'printf("{name}.{field} %zu %zu\\n", offsetof(struct {name}, {field}), '
                f"sizeof(((struct {name} *)0)->{field}));"
            )
    lines.append("}")
    (tmp_path / "probe.c").write_text("\n".join(lines))
    probe = tmp_path / "probe"
    subprocess.run(["cc", "-std=c11", "-D_GNU_SOURCE", "-o", probe, tmp_path / "probe.c"], check=True)
    in_c = dict(
        line.split(" ", 1)
        for line in subprocess.run([probe], check=True, capture_output=True, text=True).stdout.split("\n")
        if line
    )
    for name, structure in STRUCTURES.items():
        assert in_c[name] == str(ctypes.sizeof(structure))
        for field, *_ in structure._fields_:
            member = getattr(structure, field)
            if field == "mutex":  # a pthread_mutex_t within the room that both keep for it
                assert in_c["scenario.mutex"].split()[0] == str(member.offset)
                continue
            assert in_c[f"{name}.{field}"] == f"{member.offset} {member.size}"


def test_a_new_scenario_replaces_an_old_one_and_keeps_its_devices(tmp_path: Path) -> None:
    path = tmp_path / "machine"
    with simgpu.create(path, ["A100-40", "T4"], host="one") as first:
        uuids = [device.uuid for device in first.devices()]
        first.add_foreign(0, 1 << 30)
    with simgpu.create(path, ["A100-40", "T4"], host="one") as again:
        assert [device.uuid for device in again.devices()] == uuids
        assert again.device(0).used_bytes == 0
    with simgpu.create(path, ["A100-40", "T4"], host="two") as other:
        assert not set(uuids) & {device.uuid for device in other.devices()}
    assert [path.name for path in tmp_path.iterdir()] == ["machine"]


def test_a_scenario_is_for_every_user(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "machine", ["T4"]):
        assert (tmp_path / "machine").stat().st_mode & 0o777 == 0o666


def test_what_is_no_scenario_is_refused(tmp_path: Path) -> None:
    with pytest.raises(simgpu.ScenarioError):
        simgpu.Scenario(tmp_path / "nothing")
    (tmp_path / "short").write_bytes(b"short")
    with pytest.raises(simgpu.ScenarioError):
        simgpu.Scenario(tmp_path / "short")
    (tmp_path / "zeros").write_bytes(bytes(layout.FILE_BYTES))
    with pytest.raises(simgpu.ScenarioError):
        simgpu.Scenario(tmp_path / "zeros")
    with pytest.raises(simgpu.UnknownModelError, match="A1000"):
        simgpu.create(tmp_path / "machine", ["A1000"])
    with pytest.raises(simgpu.ScenarioError):
        simgpu.create(tmp_path / "machine", ["T4"] * 17)
    assert not (tmp_path / "machine").exists()


def test_unknown_devices_are_named(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "machine", ["T4"]) as scenario:
        uuid = scenario.device(0).uuid
        scenario.set(uuid, temperature_c=50)
        assert scenario.device(uuid).temperature_c == 50
        with pytest.raises(simgpu.UnknownDeviceError, match="GPU-none"):
            scenario.lose("GPU-none")
        with pytest.raises(simgpu.UnknownDeviceError):
            scenario.lose(1)
