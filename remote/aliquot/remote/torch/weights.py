"""Weights that go up by the hash of their content: what this tenant has sent before is not sent again."""

from __future__ import annotations

import ctypes
import hashlib
from typing import TypeVar

import torch

from aliquot.remote.core import messages
from aliquot.remote.core.layouts import contiguous_stride
from aliquot.remote.torch.backend import session_of
from aliquot.remote.torch.session import Session
from aliquot.remote.torch.tensor import RemoteTensor
from aliquot.remote.torch.transfer import empty

ModuleT = TypeVar("ModuleT", bound=torch.nn.Module)

_ITEMS_MAX = 4096
"""Of one question. A hash and a handle take some 40 bytes."""


def upload(module: ModuleT, device: torch.device | str | None = None) -> ModuleT:
    """Move a module as `module.to(device)` does, sending only weights that the server lacks. Returns the module.

    Raises:
        RemoteError: there is no such device, or not enough memory there.
    """
    session = session_of(device)
    here: dict[int, torch.Tensor] = {
        id(tensor): tensor
        for tensor in (*module.parameters(), *module.buffers())
        if tensor.device.type == "cpu" and not isinstance(tensor, RemoteTensor)
    }
    there = dict(zip(here, _upload(session, list(here.values())), strict=True))

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return there[id(tensor)] if id(tensor) in there else tensor.to(session.device)

    moved: ModuleT = module._apply(move)  # type: ignore[no-untyped-call]
    return moved


def _upload(session: Session, tensors: list[torch.Tensor]) -> list[RemoteTensor]:
    made: list[RemoteTensor] = []
    contents: list[memoryview] = []
    kept: list[torch.Tensor] = []
    for tensor in tensors:
        whole = tensor.detach().contiguous()
        kept.append(whole)
        made.append(empty(session, whole.shape, contiguous_stride(tuple(whole.shape)), whole.dtype))
        size_bytes = whole.numel() * whole.element_size()
        contents.append(
            memoryview((ctypes.c_char * size_bytes).from_address(whole.data_ptr())).cast("B")
            if size_bytes
            else memoryview(b"")
        )
    digests = [hashlib.sha256(content).digest() for content in contents]
    places = [place for place, content in enumerate(contents) if len(content)]
    for first in range(0, len(places), _ITEMS_MAX):
        batch = places[first : first + _ITEMS_MAX]
        request = session.request()
        items = [(made[place]._allocation.handle, digests[place]) for place in batch]
        reply, _ = session.ask(messages.Hashed(request, items), request)
        for missing in reply.missing:
            place = batch[missing]
            handle = made[place]._allocation.handle
            session.send_data(handle, contents[place])
            session.send(messages.Blob(handle, digests[place]))
    del kept
    return made
