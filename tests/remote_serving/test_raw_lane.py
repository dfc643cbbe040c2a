"""A kernel here, run on a part elsewhere, through everything that is in between."""

from __future__ import annotations

import struct

import pytest

from aliquot import remote
from aliquot.client import Pool, Serve
from aliquot.remote import cuda
from aliquot.remote.errors import RemoteMemoryError
from aliquot.simgpu.cuda import KNOWN_KERNELS


def test_a_kernel_runs_on_a_leased_part(pool: Pool) -> None:
    """By CUDA's driver alone: the process that serves has no other engine in use."""
    with (
        remote.acquire("0.25(A100),1Gi", connection=pool, serve=Serve.CUDA) as session,
        cuda.open_device(session) as device,
        cuda.open_device(session) as second,
    ):
        assert (device.memory_bytes, device.uuid) == (1 << 30, pool.get(session.lease_id).slices[0].device_uuid)
        x, y = device.allocate(16), device.allocate(16)
        x.write(struct.pack("<4f", 1, 2, 3, 4))
        y.fill(0)
        saxpy = device.load(KNOWN_KERNELS).function("saxpy", ["pointer", "pointer", "f32", "u32"])
        for _ in range(100):
            saxpy.launch(1, 4, [y, x, 0.5, 4])
        assert struct.unpack("<4f", y.read()) == (50, 100, 150, 200)
        used = device.statistics()["used_bytes"]
        with pytest.raises(RemoteMemoryError, match=f"{used} of {1 << 30} are in use"):
            second.allocate((1 << 30) - used + 1)
