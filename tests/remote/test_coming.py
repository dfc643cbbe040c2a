"""Results that come down while the program goes on, and are waited for where they are read."""

from __future__ import annotations

import copy
import gc
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch

import aliquot.remote.torch as remote
from aliquot.remote import errors


def down(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to("cpu", non_blocking=True)


def saved(tensor: torch.Tensor) -> Any:
    file = io.BytesIO()
    torch.save({"kept": [tensor]}, file)
    file.seek(0)
    return torch.load(file, weights_only=True)["kept"][0].tolist()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.tolist(),
        lambda x: x.numpy().tolist(),
        lambda x: [row.tolist() for row in x],
        lambda x: [[x[i, j].item() for j in range(3)] for i in range(2)],
        lambda x: torch.stack([x])[0].tolist(),
        lambda x: copy.deepcopy(x).tolist(),
        lambda x: x.detach().clone().tolist(),
        lambda x: x.data.tolist(),
        lambda x: torch.empty(2, 3).copy_(x).tolist(),
        lambda x: x.add_(0).tolist(),
        lambda x: torch.where(x > -1, input=x, other=torch.zeros(())).tolist(),
        saved,
    ],
)
def test_it_is_what_was_there_whoever_reads_it_first(device: torch.device, read: Callable[[torch.Tensor], Any]) -> None:
    there = torch.arange(6.0).view(2, 3).to(device)
    came = down(there)
    there.add_(100)
    assert (came.shape, came.dtype, came.device.type) == ((2, 3), torch.float32, "cpu")
    assert read(came) == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
    assert type(came) is torch.Tensor, "from then on a tensor like any other"


def test_nothing_is_waited_for_until_it_is_read(device: torch.device) -> None:
    session = remote.session_of(device)
    x = torch.ones(1000, device=device)
    waits = session.counters.waits
    losses = []
    for _ in range(10):
        x = x * 2
        losses.append(down(x.sum()))
        assert repr(losses[-1].shape) == "torch.Size([])"
    assert session.counters.waits == waits
    assert losses[-1].item() == 1024000.0
    assert [loss.item() for loss in losses] == [1000.0 * 2**n for n in range(1, 11)]
    assert session.counters.waits == waits + 1, "those before came with the one that was waited for"


def test_order_in_memory_types_and_gradients(device: torch.device) -> None:
    here = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    came = down(here.to(device))
    assert came.stride() == here.stride()
    assert torch.equal(came, here)
    assert torch.equal(down(here.to(device)[:, 1]), here[:, 1])
    assert torch.equal(here.to(device).to("cpu", torch.float64, non_blocking=True), here.double())
    assert down(torch.empty(0, 2, device=device)).tolist() == []
    weight = torch.ones(3, device=device, requires_grad=True)
    loss = down((weight * 2).sum())
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.tolist() == [2.0] * 3


def test_what_nobody_reads_is_not_kept(device: torch.device) -> None:
    session = remote.session_of(device)
    x = torch.ones(1000, device=device)
    early = down(x)
    session.synchronize()
    del early
    for _ in range(20):
        down(x)
    gc.collect()
    session.synchronize()
    assert not session._replies
    assert not session._chunks
    assert not session._unwanted


def test_an_error_before_it_is_raised_where_it_is_read(device: torch.device) -> None:
    table = torch.zeros(3, 2, device=device)
    table.index_select(0, torch.tensor([7], device=device))
    came = down(torch.ones(2, device=device))
    with pytest.raises(errors.RemoteOperatorError, match=r"index_select.*\n.*test_coming\.py"):
        came.tolist()
    assert down(table).tolist() == [[0.0, 0.0]] * 3
