"""A training program here, its tensors on a part elsewhere, through everything that is in between."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from aliquot.client import Pool

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch: `make test` without TORCH=no")

TRAIN = """
import torch
from aliquot import remote
import aliquot.remote.torch as aliquot_torch

def train(device):
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    inputs, wanted = torch.randn(64, 16).to(device), torch.randn(64, 1).to(device)
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

torch.set_num_threads(1)
with remote.connect() as session:
    device = aliquot_torch.attach(session.open())
    elsewhere = train(device)
    print(device, elsewhere == train("cpu"), elsewhere[-1] < elsewhere[0])
    aliquot_torch.detach(device)
"""


def test_a_model_is_trained_elsewhere_as_it_would_be_here(environment: dict[str, str], pool: Pool) -> None:
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", "0.25(A100),4Gi"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", TRAIN],
        env=environment | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "aliquot:0 True True\n"), done.stderr


TOGETHER = """
import torch
from aliquot import remote
import aliquot.remote.torch as aliquot_torch
from aliquot.remote import cuda
from aliquot.remote.errors import RemoteMemoryError

PART = 1 << 30
with remote.connect() as session, cuda.open_device(session) as raw:
    device = aliquot_torch.attach(session.open())
    tensor = torch.zeros(PART // 2, dtype=torch.uint8, device=device)
    tensor.sum().item()
    try:
        raw.allocate(PART // 2 + 1)
    except RemoteMemoryError as error:
        print("the driver's lane:", f"of {PART} are in use" in str(error))
    block = raw.allocate(PART // 4)
    try:
        torch.zeros(PART // 4 + 1, dtype=torch.uint8, device=device).sum().item()
    except torch.OutOfMemoryError as error:
        print("PyTorch's:", "use" in str(error))
    block.close()
    raw.statistics()  # an answer comes after what was said before
    torch.zeros(PART // 4 + 1, dtype=torch.uint8, device=device).sum().item()
    print("both go on:", raw.allocate(1 << 20).read(4) is not None)
    aliquot_torch.detach(device)
"""


def test_two_engines_on_a_part_share_its_memory(environment: dict[str, str], pool: Pool) -> None:
    """A program that uses PyTorch's operators and kernels of its own on one lease."""
    command = [sys.executable, "-m", "aliquot.cli", "run", "--remote", "--gpu", "0.25(A100),1Gi"]
    done = subprocess.run(
        [*command, "--", sys.executable, "-c", TOGETHER],
        env=environment | {"PYTHONPATH": ""},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.stdout == "the driver's lane: True\nPyTorch's: True\nboth go on: True\n", done.stderr


def test_what_an_engine_holds_is_counted_and_a_node_that_can_not_compute_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch

    from aliquot.remote.server import engines
    from aliquot.remote.server.doorkeeper import Part

    part = Part("l-1.1.0", 0, "GPU-1", 1 << 20, 250, "l-1", "research")
    monkeypatch.setenv("ALIQUOT_SIMGPU", "a scenario")
    engine = engines.make("torch", part, lambda frame: None)
    assert engine.figures() == {"ops": 0, "waits": 0, "memory_bytes": 0}  # type: ignore[attr-defined]
    engine.close()
    if not torch.cuda.is_available():
        monkeypatch.delenv("ALIQUOT_SIMGPU")
        other = Part("l-2.1.0", 0, "GPU-1", 1 << 20, 250, "l-2", "research")
        with pytest.raises(LookupError, match="build of it for CUDA"):
            engines.make("torch", other, lambda frame: None)
    with pytest.raises(LookupError, match="no engine named 'abacus'"):
        engines.make("abacus", part, lambda frame: None)
