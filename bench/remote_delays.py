"""What distance costs training on a remote device: steps at added delays, through the product's own transport.

The server is a process of its own on this machine, one thread on each end. Delays are added each way: by netem in a
network namespace of its own where this may be made, else by a proxy. `--write FILE` puts the table where the
file has its two marks.

    python bench/remote_delays.py --write docs/measured.md
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import aliquot.remote.torch as remote
from aliquot.common.ids import secret_sha256, serving_credential
from aliquot.remote.core.endpoint import Endpoint, parse
from aliquot.remote.server import certificate
from aliquot.remote.server.doorkeeper import Lease, Part
from aliquot.remote.server.engine import Settings, engine_factory
from aliquot.remote.server.listening import RemoteServer
from aliquot.remote.torch.session import Session
from aliquot.remote.wire.client import Opening, open_channel
from bench.lib.delaying import DelayingProxy
from bench.lib.remote_programs import mlp, transformer

CREDENTIAL = serving_credential("bench", "l-bench", 1, "bench")
BEGIN, END = "<!-- delays: begin -->", "<!-- delays: end -->"
INSIDE = "ALIQUOT_BENCH_NAMESPACE"
Step = Callable[[], torch.Tensor]


def serve() -> None:
    """The server process: PyTorch on one thread."""
    own = certificate.make()
    parts = {"s": Part("s", 0, "GPU", 1 << 34, 1000, "l-bench", "bench")}
    lease = Lease("l-bench", 1, "bench", secret_sha256(CREDENTIAL), parts)
    make = engine_factory(Settings(threads=1))
    server = RemoteServer(lease, lambda name, part, answer: make(answer), "bench")
    print(Endpoint("127.0.0.1", server.start("127.0.0.1", 0, own), own.sha256), flush=True)
    sys.stdin.read()


def has_netem() -> bool:
    """Whether a namespace can be made whose loopback is delayed."""
    if not all(map(shutil.which, ("unshare", "ip", "tc"))):
        return False
    probe = ["unshare", "-n", "sh", "-c", "ip link set lo up && tc qdisc add dev lo root netem delay 1ms"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@contextmanager
def delayed(endpoint: Endpoint, delay_ms: float, *, netem: bool) -> Iterator[Endpoint]:
    """The endpoint, that far away."""
    if netem:
        subprocess.run(["tc", "qdisc", "replace", "dev", "lo", "root", "netem", "delay", f"{delay_ms}ms"], check=True)
        yield endpoint
        subprocess.run(["tc", "qdisc", "del", "dev", "lo", "root"], check=True)
        return
    proxy = DelayingProxy(endpoint.port, delay_ms / 1000)
    try:
        yield Endpoint("127.0.0.1", proxy.port, endpoint.certificate_sha256)
    finally:
        proxy.close()


def at_once(step: Step, count: int) -> float:
    """Seconds a step, each of which reads its loss."""
    began_s = time.perf_counter()
    for _ in range(count):
        step().item()
    return (time.perf_counter() - began_s) / count


def later(step: Step, count: int) -> float:
    """Seconds a step whose loss is read four steps behind."""
    coming: list[torch.Tensor] = []
    began_s = time.perf_counter()
    for _ in range(count):
        coming.append(step().to("cpu", non_blocking=True))
        if len(coming) > 4:
            coming.pop(0).item()
    for loss in coming:
        loss.item()
    return (time.perf_counter() - began_s) / count


def measured(run: Callable[[Step, int], float], step: Step, count: int, rounds: int) -> float:
    """Milliseconds a step in the best of some rounds, after some to warm up: what else runs here only adds."""
    run(step, 4)
    return round(min(run(step, count) for _ in range(rounds)) * 1e3, 2)


def measure(endpoint: Endpoint, delays_ms: list[float], rounds: int, *, netem: bool) -> list[dict[str, float]]:
    """A row for each delay; the first is of this machine alone."""
    here, small = transformer("cpu")[0], mlp("cpu")[0]
    rows = [
        {
            "transformer_at_once": measured(at_once, here, 3, rounds),
            "mlp_at_once": measured(at_once, small, 20, rounds),
        }
    ]
    for delay_ms in delays_ms:
        with delayed(endpoint, delay_ms, netem=netem) as there:
            channel = open_channel(there, Opening("l-bench", 1, "bench", "s", CREDENTIAL, "torch"))
            device = remote.attach(channel)
            session = remote.session_of(device)
            row = {"delay_ms": delay_ms, "round_trip": round(_trip_ms(session), 2)}
            for name, make, count in (("transformer", transformer, 2), ("mlp", mlp, 12)):
                eager = make(device)[0]
                captured = remote.capture(make(device, capturable=True)[0])
                row[f"{name}_at_once"] = measured(at_once, eager, count, rounds)
                row[f"{name}_later"] = measured(later, eager, 3 * count, rounds)
                row[f"{name}_captured_at_once"] = measured(at_once, captured, count, rounds)
                row[f"{name}_captured_later"] = measured(later, captured, 3 * count, rounds)
                del eager, captured
            rows.append(row)
            remote.detach(device)
    return rows


def _trip_ms(session: Session) -> float:
    taken = []
    for _ in range(10):
        began_s = time.perf_counter()
        session.synchronize()
        taken.append(time.perf_counter() - began_s)
    return min(taken) * 1e3


def table(rows: list[dict[str, float]], how: str) -> str:
    """For the documentation."""
    local, *others = rows
    columns = ["delay each way", "round trip"]
    columns += [
        f"{program}, {lane}loss read {when}"
        for program in ("transformer", "MLP")
        for lane in ("", "captured, ")
        for when in ("each step", "four steps behind")
    ]
    large, small = local["transformer_at_once"], local["mlp_at_once"]
    lines = [
        f"Milliseconds a step, best of rounds, delays added {how}. Here: transformer {large:.1f}, MLP {small:.1f}.",
        "",
        f"| {' | '.join(columns)} |",
        "|" + "---|" * len(columns),
    ]
    for row in others:
        cells = [f"{row['delay_ms']:g} ms", f"{row['round_trip']:.1f}"]
        for name in ("transformer", "mlp"):
            cells += [
                f"{row[f'{name}_{kind}']:.1f}" for kind in ("at_once", "later", "captured_at_once", "captured_later")
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--delays-ms", type=float, nargs="*", default=[0.0, 0.1, 1, 10, 50])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--write", type=Path, metavar="FILE")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.serve:
        serve()
        return
    netem = INSIDE in os.environ
    if not netem and has_netem():
        inside = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$0" "$@"', sys.executable, *sys.argv]
        os.execvpe("unshare", inside, {**os.environ, INSIDE: "1"})
    gc.freeze()
    server = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        rows = measure(parse(server.stdout.readline().strip()), options.delays_ms, options.rounds, netem=netem)
    finally:
        server.kill()
        server.wait()
    load = round(os.getloadavg()[0], 1)
    how = f"by {'netem' if netem else 'a proxy'}, on {os.cpu_count()} processors at a load of {load}"
    print(json.dumps({"rows": rows, "delays": how}))
    if options.write:
        text = options.write.read_text()
        before, rest = text.split(BEGIN)
        options.write.write_text(f"{before}{BEGIN}\n{table(rows, how)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
