"""What a program finds where `cuda` is a lease: refusals by name, and nothing where it did not ask for a lease."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aliquot.cli._exits import Exit
from aliquot.client import Pool
from aliquot.remote.compat.signals import stop_signal
from aliquot.remote.launching import PROGRAMS, STARTUP, cuda_here
from aliquot.remote.native import LIBRARY
from tests.polling import eventually
from tests.remote_scripts.conftest import Run

REFUSED = """
import torch
from aliquot.remote.compat import NotOnRemoteError
for feature, call in {
    "torch.cuda.CUDAGraph": torch.cuda.CUDAGraph,
    "torch.cuda.FloatTensor": lambda: torch.cuda.FloatTensor(3),
    "torch.cuda.memory_snapshot": torch.cuda.memory_snapshot,
    "sharing a tensor": lambda: torch.ones(2, device="cuda").share_memory_(),
}.items():
    try:
        call()
    except NotOnRemoteError as error:
        assert str(error).startswith(feature), error
    else:
        raise AssertionError(feature)
try:
    torch.ones(2, device="cuda:7")
except RuntimeError as error:
    assert "cuda:7" in str(error), error
held = torch.ones(4, device="cuda")
try:
    torch.empty(1 << 34, device="cuda")
    torch.cuda.synchronize()
except torch.OutOfMemoryError:
    print(held.sum().item(), torch.cuda.memory_allocated())
"""

LATE = """
import sys, torch
table = torch.ones(3, 2, device="cuda")
table.index_select(0, torch.tensor([7], device="cuda"))
print("done")
sys.exit(int(sys.argv[1]))
"""

TWO = """
import torch
assert torch.cuda.device_count() == 2
one, other = (torch.nn.Linear(3, 3).to(f"cuda:{index}") for index in range(2))
loss = other(one(torch.ones(2, 3, device="cuda:0")).to("cuda:1")).sum()
loss.backward()
print(one.weight.grad.device, other.weight.grad.device)
"""

COMPILED = """
import copy
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(16, 8), nn.LayerNorm(8), nn.Linear(8, 16)
        self.places = nn.Embedding(6, 8)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.embedding(tokens) + self.places(places)).tanh())

def train(model, run, dtype):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for size in (4, 4, 3, 4, 3):
        tokens = torch.arange(size * 6, device="cuda").view(size, 6) % 16
        with torch.autocast("cuda", dtype=dtype, enabled=dtype is not torch.float32):
            loss = nn.functional.cross_entropy(run(tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses

torch.manual_seed(0)
model = Model().cuda()
for dtype in (torch.float32, torch.bfloat16):
    eager, compiled = copy.deepcopy(model), copy.deepcopy(model)
    print(train(eager, eager, dtype) == train(compiled, torch.compile(compiled, mode="max-autotune"), dtype))

@torch.compile
def by_name(x):
    return x + torch.ones(2, device="cuda")

print(by_name(torch.ones(2, device="cuda")).tolist())
"""


def test_what_does_not_work_is_refused_by_its_name(run_remote: Run) -> None:
    done = run_remote("-c", REFUSED)
    assert (done.returncode, done.stdout) == (0, "4.0 16\n"), done.stderr


def test_a_failure_that_nobody_waited_for_is_the_programs(run_remote: Run) -> None:
    done = run_remote("-c", LATE, "0")
    assert (done.returncode, done.stdout) == (1, "done\n")
    assert "aliquot: what the program asked for last has failed: aten::index_select: " in done.stderr
    assert "line 4, in <module>" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_lease_of_two_parts_is_two_devices(run_remote: Run) -> None:
    done = run_remote("-c", TWO, gpu="2x0.25(A100),4Gi")
    assert (done.returncode, done.stdout) == (0, "cuda:0 cuda:1\n"), done.stderr


def test_a_model_is_compiled_for_the_lease_without_being_asked(run_remote: Run) -> None:
    done = run_remote("-W", "error::UserWarning", "-c", COMPILED)
    assert (done.returncode, done.stdout) == (0, "True\nTrue\n[2.0, 2.0]\n"), done.stderr


PROFILED = """
import torch
x = torch.ones(4, device="cuda", requires_grad=True)
optimizer = torch.optim.SGD([x], lr=0.1)
for _ in range(5):
    (x * x).sum().backward()
    optimizer.step()
    x.detach().sum().item()
"""


def test_a_program_says_where_its_time_went(run_remote: Run, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROFILED)
    done = run_remote(str(tmp_path / "train.py"), options=("--profile",))
    assert done.returncode == 0, done.stderr
    assert "aliquot:0 (served by cpu):" in done.stderr
    assert ", 5 steps" in done.stderr
    assert "1 waits a step" in done.stderr
    assert ".item() at train.py:8" in done.stderr


ENDLESS = """
import pathlib, sys, time, torch
x = torch.ones(4, device="cuda")
while x.mul_(1).sum().item() == 4:
    time.sleep(0.02)
    pathlib.Path(sys.argv[1]).touch()
"""

SAVING = """
import signal, sys
def save(*_):
    torch.save(x, sys.argv[1] + ".pt")
    print("saved", torch.load(sys.argv[1] + ".pt").tolist())
    sys.exit(3)
signal.signal(signal.SIGUSR1, save)
"""


@pytest.mark.parametrize("saves", [False, True])
def test_preemption_is_told_and_ends_the_program(run_remote: Run, pool: Pool, tmp_path: Path, saves: bool) -> None:
    running = tmp_path / "running"
    script = (SAVING if saves else "") + ENDLESS
    ended: list[subprocess.CompletedProcess[str]] = []
    options = ["--preemptible", "--grace", "3s", *(["--stop-signal", "USR1"] if saves else [])]
    program = threading.Thread(
        target=lambda: ended.append(run_remote("-c", script, str(running), gpu="2x1(A100)", options=options))
    )
    program.start()
    eventually(running.exists)
    with pool.lease("1(A100)", priority=100):
        program.join(120)
    (done,) = ended
    assert "aliquot: the lease ends in 3 s" in done.stderr
    if saves:
        assert (done.returncode, done.stdout) == (3, "saved [1.0, 1.0, 1.0, 1.0]\n"), done.stderr
        return
    assert done.returncode == Exit.LEASE_LOST, done.stderr
    assert "SessionLeaseEnded" in done.stderr
    assert "aliquot: the program has ended because lease " in done.stderr
    assert "has ended (PREEMPTED)" in done.stderr
    assert "; a request with a better claim needed the capacity" in done.stderr


def test_a_program_is_told_by_sigterm_unless_something_else_is_stated() -> None:
    assert stop_signal({}) is stop_signal({"ALIQUOT_STOP_SIGNAL": "KILL"}) is signal.SIGTERM
    assert stop_signal({"ALIQUOT_STOP_SIGNAL": "usr2"}) is signal.SIGUSR2


def test_the_variables_add_to_the_programs_own_path() -> None:
    assert cuda_here({"ALIQUOT_REMOTE_CUDA": "0", "PYTHONPATH": "/mine"}) == {}
    stated = cuda_here({"PYTHONPATH": "/mine", "PATH": "/bin", "LD_LIBRARY_PATH": "/lib"})
    assert stated == {
        "ALIQUOT_REMOTE_CUDA": "1",
        "PYTHONPATH": f"{STARTUP}{os.pathsep}/mine",
        "PATH": f"{PROGRAMS}{os.pathsep}/bin",
        "LD_LIBRARY_PATH": f"{LIBRARY.parent}{os.pathsep}/lib",
    }
    assert cuda_here({})["LD_LIBRARY_PATH"] == str(LIBRARY.parent)


def test_a_python_without_aliquot_says_so_and_runs_nothing(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("")
    script = "import sys; sys.modules['aliquot.remote.compat'] = None; import torch; print('on the processor')"
    environment = {**os.environ, "PYTHONPATH": f"{STARTUP}{os.pathsep}{tmp_path}", "ALIQUOT_REMOTE_CUDA": "1"}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "install 'aliquot[remote]' there" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_sitecustomize_still_runs_and_nothing_is_changed_unasked(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import builtins\nbuiltins.theirs = 1\n")
    said = "import sys, builtins; print(builtins.theirs, 'torch' in sys.modules, len(sys.meta_path))"

    def run(**more: str) -> str:
        environment = {**os.environ, "PYTHONPATH": f"{STARTUP}{os.pathsep}{tmp_path}", **more}
        environment = {name: value for name, value in environment.items() if value}
        return subprocess.run(
            [sys.executable, "-c", said], env=environment, capture_output=True, text=True, check=True
        ).stdout

    theirs, torch_there, finders = run(ALIQUOT_REMOTE_CUDA="").split()
    assert (theirs, torch_there) == ("1", "False")
    assert run(ALIQUOT_REMOTE_CUDA="1").split() == ["1", "False", str(int(finders) + 1)]


def test_nvidia_smi_says_what_the_lease_has_and_that_it_stands_in(run_remote: Run) -> None:
    asked = "import subprocess; print(subprocess.check_output(['nvidia-smi', *{}], text=True), end='')"
    query = ["--query-gpu=name,memory.total,temperature.gpu", "--format=csv,noheader,nounits"]
    assert run_remote("-c", asked.format(query)).stdout == "A100-40, 4096, [N/A]\n"
    assert run_remote("-c", asked.format(["-i", "0", *query])).stdout == "A100-40, 4096, [N/A]\n"
    assert "aliquot: parts of GPUs on other machines" in run_remote("-c", asked.format([])).stdout
