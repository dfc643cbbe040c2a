"""What work on a remote device costs: operators issued, training steps beside the same steps here, bytes on the wire.

The server is a process of its own on this machine, behind the product's own transport (gRPC, TLS), one thread on each
end, so ratios are about the way there and not about devices. A relay of ours adds delays, and holds back what is lost.
Local and remote runs take turns, and medians are compared. `--rgpu PYTHON` compares with the published `rgpu`,
installed where that interpreter finds it.

    python bench/remote.py --json
"""

from __future__ import annotations

import argparse
import copy
import gc
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import aliquot.remote.torch as remote
from aliquot.remote.core.endpoint import Endpoint, parse
from bench.lib.delaying import DelayingProxy
from bench.lib.remote_programs import OPERATORS, Transformer, mlp, operator_us, transformer
from bench.lib.remote_rgpu import milliseconds
from bench.lib.remote_server import ServerProcess, channel
from tests.remote import probe


def issue_us(device: torch.device, *, grad: bool, rounds: int = 15, operators: int = 400) -> float:
    """Median time of one operator to the caller, the server keeping up between rounds."""
    session = remote.session_of(device)
    x = torch.randn(8, 8, device=device, requires_grad=grad)
    y = torch.randn(8, 8, device=device)
    taken = []
    for _ in range(rounds):
        z = x
        start = time.perf_counter()
        for _ in range(operators // 4):
            z = z + y
            z = z * y
            z = torch.relu(z)
            z = z.sub(y)
        taken.append((time.perf_counter() - start) / operators)
        session.synchronize()
    return statistics.median(taken) * 1e6


def in_turns(programs: dict[str, Callable[[], object]], rounds: int, warm: int) -> dict[str, float]:
    """Median seconds of each program, run in turns."""
    for program in programs.values():
        for _ in range(warm):
            program()
    taken: dict[str, list[float]] = {name: [] for name in programs}
    for _ in range(rounds):
        for name, program in programs.items():
            start = time.perf_counter()
            program()
            taken[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in taken.items()}


def steps(step: Callable[[], torch.Tensor], count: int, *, item: bool) -> Callable[[], object]:
    """A program of several steps that ends with its last loss; with `item` each step does."""

    def run() -> object:
        loss = None
        for _ in range(count):
            loss = step()
            if item:
                loss.item()
        return None if item or loss is None else loss.item()

    return run


def measure(device: torch.device, arguments: argparse.Namespace) -> dict[str, Any]:
    """Every field that a quiet machine can say."""
    session = remote.session_of(device)
    fields: dict[str, Any] = {}
    fields["issue_us"] = round(issue_us(device, grad=False), 2)
    fields["issue_grad_us"] = round(issue_us(device, grad=True), 2)

    here, _ = transformer("cpu")
    there, _ = transformer(device)
    programs = {"local": steps(here, 1, item=True), "eager": steps(there, 1, item=True)}
    captured = remote.capture(transformer(device, capturable=True)[0])
    programs["capture"] = steps(captured, 1, item=True)
    times = in_turns(programs, arguments.rounds, 4)
    fields["transformer_local_ms"] = round(times["local"] * 1e3, 2)
    fields["transformer_eager_ratio"] = round(times["eager"] / times["local"], 3)
    fields["transformer_capture_ratio"] = round(times["capture"] / times["local"], 3)
    for name in ("eager", "capture"):
        before, waits = session.counters.sent_bytes, session.counters.waits
        for _ in range(10):
            programs[name]()
        fields[f"{name}_bytes_per_step"] = round((session.counters.sent_bytes - before) / 10)
        fields["waits_per_step"] = (session.counters.waits - waits) / 10

    here, _ = mlp("cpu")
    there, _ = mlp(device)
    captured = remote.capture(mlp(device, capturable=True)[0])
    for item, count in ((False, 20), (True, 20)):
        times = in_turns(
            {
                "local": steps(here, count, item=item),
                "eager": steps(there, count, item=item),
                "capture": steps(captured, count, item=item),
            },
            arguments.rounds,
            2,
        )
        fields["mlp_local_ms"] = round(times["local"] / count * 1e3, 3)
        if item:
            fields["mlp_item_eager_ratio"] = round(times["eager"] / times["local"], 3)
            fields["mlp_item_capture_ratio"] = round(times["capture"] / times["local"], 3)
        else:
            fields["mlp_ratio"] = round(times["eager"] / times["local"], 3)
    return fields


def second_client_bytes(server: ServerProcess) -> int:
    """Bytes of weights that a second client sends of a model that a first one has sent."""
    torch.manual_seed(1)
    model = Transformer()
    sent = []
    for _ in range(2):
        device = remote.attach(server.channel())
        session = remote.session_of(device)
        before = session.counters.data_bytes
        remote.upload(copy.deepcopy(model), device)
        session.synchronize()  # what was not done when a session is closed is not done any more
        sent.append(session.counters.data_bytes - before)
        remote.detach(device)
    assert sent[0] > 1 << 20
    return sent[1]


WAYS = ((0.0, 0.0), (1.0, 0.0), (10.0, 0.0), (10.0, 0.01), (50.0, 0.0))
"""Delay each way in milliseconds, and how much of what is sent is lost."""


def delays(server: ServerProcess) -> list[dict[str, float]]:
    """A row for each way there: a round trip, and a step of three linear layers whose loss is read."""
    there, rows = parse(server.endpoint), []
    for delay_ms, lost in WAYS:
        relay = DelayingProxy(there.port, delay_ms / 1e3, lost=lost)
        device = remote.attach(channel(str(Endpoint("127.0.0.1", relay.port, there.certificate_sha256)), "torch"))
        trip = in_turns({"trip": remote.session_of(device).synchronize}, 10, 2)["trip"]
        step = in_turns({"step": steps(mlp(device)[0], 1, item=True)}, 10, 3)["step"]
        rows.append(
            {"delay_ms": delay_ms, "lost": lost, "trip_ms": round(trip * 1e3, 2), "mlp_ms": round(step * 1e3, 2)}
        )
        remote.detach(device)
        relay.close()
    return rows


def beside_rgpu(device: torch.device, interpreter: str | None) -> dict[str, Any]:
    """How many times as long the published rgpu takes, in the same minutes. None where it is not there."""
    names = ("rgpu_op_ratio", "rgpu_mlp_ratio", "rgpu_transformer_ratio")
    if interpreter is None:
        return dict.fromkeys(names)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {**os.environ, "RGPU_OPSERVER": f"127.0.0.1:{port}", "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [interpreter, "-m", "rgpu.server", "--bind", "127.0.0.1", "--port", str(port), "--device", "cpu"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port)
        script = Path(__file__).parent / "lib" / "remote_rgpu.py"
        done = subprocess.run(
            [interpreter, script, "rgpu"], env=environment, capture_output=True, text=True, check=True
        )
        theirs = json.loads(done.stdout.strip().splitlines()[-1])
    finally:
        server.terminate()
        server.wait()
    ours = [operator_us(name, device) for name in OPERATORS]
    ratios = [other / own for other, own in zip(theirs["operators_us"], ours, strict=True)]
    return {
        "rgpu_op_ratio": round(statistics.geometric_mean(ratios), 2),
        "rgpu_mlp_ratio": round(theirs["mlp_ms"] / milliseconds(mlp(device)[0], 5, 5), 2),
        "rgpu_transformer_ratio": round(theirs["transformer_ms"] / milliseconds(transformer(device)[0], 5, 1), 2),
    }


def _wait_for(port: int) -> None:
    for _ in range(200):
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the server of rgpu does not answer")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--rounds", type=int, default=15, help="turns of each comparison")
    parser.add_argument("--device-only", action="store_true", help="leave out delays, and what starts a pool")
    parser.add_argument("--rgpu", metavar="PYTHON", help="an interpreter that has rgpu, to compare with")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    gc.freeze()
    server = ServerProcess()
    try:
        print(json.dumps(everything(server, arguments), indent=None if arguments.json else 2))
    finally:
        server.close()


def everything(server: ServerProcess, arguments: argparse.Namespace) -> dict[str, Any]:
    """All fields."""
    device = remote.attach(server.channel())
    fields = measure(device, arguments)
    fields |= beside_rgpu(device, arguments.rgpu)
    fields["second_client_weight_bytes"] = second_client_bytes(server)
    results = probe.run(device)
    fields["probe_passed"], fields["probe_total"] = sum(not error for _, _, error in results), len(results)
    remote.detach(device)  # PyTorch counts devices at the first backward: each row of the delays is this one anew
    if not arguments.device_only:
        from bench.lib.remote_starts import starts  # noqa: PLC0415 - needs a whole installation

        fields["delays"] = delays(server)
        fields |= starts()
    fields["load_average"] = round(os.getloadavg()[0], 1)
    return fields


if __name__ == "__main__":
    main()
