"""Jobs of the public Philly-derived list as requests: who asks when, for how many devices, and for how long.

Rules for what the list leaves open:

- Ten per cent of the jobs state no duration. They get the median of their virtual cluster's jobs with as many devices,
  else of all jobs with as many, else of all jobs.
- There are no priorities.
- Up to 8 devices are one member on one node; more are a gang of equal members of 8, 4, 2 or 1 devices, the largest that
  divides the number.
- Every virtual cluster's time begins at its own first job, as in the list.
"""

from __future__ import annotations

import csv
import gzip
import statistics
from dataclasses import dataclass
from pathlib import Path

from aliquot.coordinator.core.values.types import Demand

NODE_DEVICES = 8


@dataclass(frozen=True, slots=True)
class Job:
    """One job of the list."""

    number: int
    tenant: str
    submit_ms: int
    devices: int
    duration_ms: int

    @property
    def demand(self) -> Demand:
        """What it asks for."""
        if self.devices <= NODE_DEVICES:
            return Demand(count=self.devices, share_milli=1000)
        width = next(width for width in (8, 4, 2, 1) if self.devices % width == 0)
        return Demand(count=width, share_milli=1000, gang_size=self.devices // width)

    @property
    def work(self) -> int:
        """Device-milliseconds."""
        return self.devices * self.duration_ms


def read_jobs(folder: Path) -> list[Job]:
    """All jobs, by time of submission."""
    with gzip.open(folder / "gavel_msr_seed0_jobs.csv.gz", "rt", newline="") as file:
        rows = list(csv.DictReader(file))
    known: dict[tuple[str, str], list[int]] = {}
    for row in rows:
        if row["est_duration_s"]:
            for key in ((row["vc"], row["num_gpu"]), ("", row["num_gpu"]), ("", "")):
                known.setdefault(key, []).append(int(row["est_duration_s"]))
    medians = {key: round(statistics.median(values)) for key, values in known.items()}
    rows.sort(key=lambda row: int(row["submit_s"]))
    jobs = []
    for number, row in enumerate(rows):
        stated = row["est_duration_s"]
        keys = ((row["vc"], row["num_gpu"]), ("", row["num_gpu"]), ("", ""))
        seconds = int(stated) if stated else next(medians[key] for key in keys if key in medians)
        jobs.append(
            Job(number, f"vc-{row['vc']}", int(row["submit_s"]) * 1000, int(row["num_gpu"]), max(1, seconds) * 1000)
        )
    return jobs


def guarantees(jobs: list[Job], devices: int, part_permille: int) -> dict[str, int]:
    """Devices guaranteed to each tenant: enough for its largest job, and the rest of the part in equal shares."""
    largest: dict[str, int] = {}
    for job in jobs:
        largest[job.tenant] = max(largest.get(job.tenant, 0), job.devices)
    rest = devices * part_permille // 1000 - sum(largest.values())
    if rest < 0:
        raise ValueError(f"{part_permille} permille of {devices} devices do not hold the largest job of every tenant")
    return {tenant: size + rest // len(largest) for tenant, size in sorted(largest.items())}
