"""Captured steps: the same as the step itself, or a reason."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import aliquot.remote.torch as remote
from aliquot.remote import errors


def program(where: torch.device | str, *, dropout: float = 0.0, **options: Any) -> tuple[Any, nn.Module, Any]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(dropout), nn.Linear(12, 3)).to(where)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, **options)

    def step(inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), targets)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step, model, optimizer


def batches(count: int, rows: int = 5) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(3)
    return [
        (torch.randn(rows, 6, generator=generator), torch.randint(0, 3, (rows,), generator=generator))
        for _ in range(count)
    ]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_captured_step_does_what_the_step_does(device: torch.device, dropout: float) -> None:
    here, _, _ = program("cpu", dropout=dropout)
    there, model, _ = program(device, dropout=dropout)
    captured = remote.capture(there)
    session = remote.session_of(device)
    torch.manual_seed(5)
    expected = [here(*batch).item() for batch in batches(12)]
    torch.manual_seed(5)
    losses = [captured(inputs.to(device), targets.to(device)) for inputs, targets in batches(12)]
    assert [loss.item() for loss in losses] == expected, (
        "kept losses keep their values, and dropout varies as it does here"
    )
    assert captured.recordings == 2
    frames = session.counters.sent_bytes
    fixed = [tensor.to(device) for tensor in batches(1)[0]]
    captured(*fixed).item()
    frames = session.counters.sent_bytes
    captured(*fixed).item()
    assert session.counters.sent_bytes - frames < 150
    assert next(model.parameters()).grad is not None


def test_memory_stays_flat_and_comes_back(device: torch.device) -> None:
    there, model, optimizer = program(device)
    captured = remote.capture(there)
    inputs, targets = (tensor.to(device) for tensor in batches(1)[0])
    session = remote.session_of(device)
    for _ in range(5):
        captured(inputs, targets)
    used = session.statistics()["used_bytes"]
    for _ in range(200):
        captured(inputs, targets)
    assert session.statistics()["used_bytes"] == used
    captured.reset()
    assert captured(inputs, targets).item() >= 0
    del captured, there, model, optimizer


def test_other_sizes_and_another_learning_rate_are_recorded_anew(device: torch.device) -> None:
    here, _, local = program("cpu")
    there, _, distant = program(device)
    captured = remote.capture(there)
    todo = batches(6) + batches(6, rows=2) + batches(3)
    expected, got = [], []
    for number, (inputs, targets) in enumerate(todo):
        if number == 13:
            for optimizer in (local, distant):
                optimizer.param_groups[0]["lr"] = 0.01
        expected.append(here(inputs, targets).item())
        got.append(captured(inputs.to(device), targets.to(device)).item())
    assert got == expected
    assert captured.recordings == 5


def test_a_wait_inside_is_refused_and_named(device: torch.device) -> None:
    x = torch.ones(3, device=device)

    def step() -> torch.Tensor:
        if x.sum().item() > 0:
            x.mul_(0.5)
        return x

    captured = remote.capture(step)
    captured()
    with pytest.raises(errors.CaptureError, match=r"waited for\n.*test_capture\.py.*in step"):
        captured()
    assert x.sum().item() == 1.5


def test_a_number_that_changes_is_refused_and_named(device: torch.device) -> None:
    x = torch.zeros(3, device=device)
    number = [0.0]

    def step() -> None:
        number[0] += 1.0
        x.add_(number[0])

    captured = remote.capture(step)
    captured()
    captured()
    with pytest.raises(errors.CaptureError, match=r"add_.*capturable"):
        captured()
    assert x.tolist() == [6.0] * 3, "the step was done as it is"


def test_adam_is_captured_with_its_count_on_the_device(device: torch.device) -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 2)

    def losses(*, captured: bool) -> list[float]:
        moved = copy.deepcopy(model).to(device)
        optimizer = torch.optim.AdamW(moved.parameters(), lr=0.05, capturable=True, foreach=True)

        def step() -> torch.Tensor:
            optimizer.zero_grad()
            loss: torch.Tensor = moved(torch.ones(3, 4, device=device)).square().sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        run = remote.capture(step) if captured else step
        return [run().item() for _ in range(8)]

    assert losses(captured=False) == losses(captured=True)


def test_a_step_that_is_too_long_to_be_kept_says_so_and_is_kept_once_it_is_shorter(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    step, _, _ = program(device)
    captured = remote.capture(step)
    batch = [tensor.to(device) for tensor in batches(1)[0]]
    captured(*batch)
    captured(*batch)
    with monkeypatch.context() as patch:
        patch.setattr("aliquot.remote.torch.session.FRAME_BYTES_MAX", 200)
        remote.session_of(device).threshold = 20  # what is said of the step while it runs still fits
        with pytest.raises(errors.RemoteError, match="capture a shorter step"):
            captured(*batch)
    here, _, _ = program("cpu")
    expected = [here(*batches(1)[0]).item() for _ in range(6)]
    assert [captured(*batch).item() for _ in range(2)] == expected[3:5]
    assert captured.recordings == 3, "that of the first call that could be kept"
