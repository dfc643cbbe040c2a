"""CUDA's driver on a part of a GPU elsewhere, for programs that have kernels of their own (docs/remote.md).

    from aliquot import remote
    from aliquot.remote import cuda

    with remote.acquire("0.25(A100),10Gi") as session, cuda.open_device(session) as device:
        x, y = device.allocate(4096), device.allocate(4096)
        x.write(numbers)
        kernel = device.load(ptx).function("saxpy", ["pointer", "pointer", "f32", "u32"])
        kernel.launch(4, 256, [y, x, 2.0, 1024])
        result = y.read()

Nothing of CUDA, and no PyTorch, is needed on the client's machine.
"""

from aliquot.remote.cuda.device import Device, open_device
from aliquot.remote.cuda.memory import Memory, Pointer
from aliquot.remote.cuda.modules import Kernel, Module
from aliquot.remote.cuda.streams import Event, Stream

__all__ = ["Device", "Event", "Kernel", "Memory", "Module", "Pointer", "Stream", "open_device"]
