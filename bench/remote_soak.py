"""Whether either end of a remote device grows while operators go by: resident memory at the beginning and at the end.

    python bench/remote_soak.py --ops 10000000 --json

One client and one serving process, over the transport that leases have, on this machine's processor. The work is what
training has: small operators with and without gradients, tensors that come and go, steps of an optimizer, values that
are waited for, uploads and downloads, sizes that change (so that templates are made anew), an error now and then, a
session that is opened and closed. Readings after the first tenth count: `client_rss_growth_mb` and
`server_rss_growth_mb` (MiB) are the median of the last tenth less that of the second; `slope` is MiB for each million
operators between. `--minutes` ends it early; `ops` says how far it came.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch

import aliquot.remote.torch as remote
from aliquot.remote.errors import RemoteError
from bench.lib.remote_server import ServerProcess, rss_mib

_READINGS = 200


class Work:
    """What is repeated on a device."""

    def __init__(self, device: torch.device) -> None:
        torch.manual_seed(0)
        self.device = device
        self.x = torch.randn(16, 16).to(device)
        self.y = torch.randn(16, 16).to(device)
        self.model = torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).to(device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3, foreach=True)
        self.turn = 0

    def once(self) -> None:
        """Some thousand operators."""
        self.turn += 1
        for _ in range(40):
            z = self.x
            for _ in range(16):
                z = (z + self.y) * self.x
                z = torch.relu(z) - self.y
        for _ in range(5):
            self._step()
        self._step().item()
        if self.turn % 10 == 0:
            size = 1 + self.turn // 10 % 997  # templates that were not seen for long are made anew
            wide = torch.ones(size, 7).to(self.device)
            (wide * 2).sum().item()
            wide.cpu()
        if self.turn % 100 == 0:
            try:
                torch.mm(self.x, torch.ones(3, 3).to(self.device)).sum().item()
            except (RemoteError, RuntimeError):
                pass
            else:
                raise AssertionError("a product of sizes that don't fit has worked")

    def _step(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss: torch.Tensor = self.model(self.x).pow(2).mean()
        loss.backward()
        self.optimizer.step()
        return loss.detach()


def soak(server: ServerProcess, ops: int, until_s: float) -> dict[str, object]:
    """Run, and say what grew."""
    device = remote.attach(server.channel())
    session = remote.session_of(device)
    work = Work(device)
    readings: list[tuple[int, float, float]] = []
    started = time.monotonic()
    done = before = 0
    while done < ops and time.monotonic() < until_s:
        work.once()
        if work.turn % 10 == 0:
            done = before + session.statistics()["operators"]
        if done >= len(readings) * ops // _READINGS:
            readings.append((done, rss_mib(os.getpid()), rss_mib(server.process.pid)))
        if work.turn % 500 == 0:
            before = done = before + session.statistics()["operators"]
            remote.detach(device)
            device = remote.attach(server.channel())
            session = remote.session_of(device)
            work = Work(device)
    held = session.statistics()["used_bytes"]
    remote.detach(device)
    fields: dict[str, object] = {"ops": done, "took_s": round(time.monotonic() - started, 1), "held_bytes": held}
    count = len(readings)
    early, late = readings[count // 10 : max(count // 5, count // 10 + 1)], readings[-max(1, count // 10) :]
    for name, column in (("client", 1), ("server", 2)):
        growth = statistics.median(each[column] for each in late) - statistics.median(each[column] for each in early)
        fields[f"{name}_rss_growth_mb"] = round(growth, 2)
        fields[f"{name}_rss_mb"] = round(readings[-1][column], 1)
        points = readings[count // 10 :]
        if len(points) > 2:
            slope = statistics.linear_regression([each[0] / 1e6 for each in points], [each[column] for each in points])
            fields[f"{name}_mb_per_million_ops"] = round(slope.slope, 3)
    return fields


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="one line")
    parser.add_argument("--ops", type=int, default=10_000_000)
    parser.add_argument("--minutes", type=float, default=15.0, help="end early")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    server = ServerProcess()
    try:
        fields = soak(server, arguments.ops, time.monotonic() + arguments.minutes * 60)
    finally:
        server.close()
    fields["load_average"] = round(os.getloadavg()[0], 1)
    print(json.dumps(fields, indent=None if arguments.json else 2))


if __name__ == "__main__":
    main()
