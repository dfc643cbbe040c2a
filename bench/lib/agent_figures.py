"""What an agent uses and does in some seconds, from its metrics and from /proc."""

from __future__ import annotations

import os
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class AgentFigures:
    """Of a running agent."""

    pid: int
    metrics: str
    """The URL of its metrics."""

    def measure(self, seconds: float) -> dict[str, float | int]:
        """Over this many seconds from now, in which at least one device is polled."""
        before, cpu_before, began = self._scrape(), self._cpu_s(), time.monotonic()
        time.sleep(seconds)
        after, cpu_after, ended = self._scrape(), self._cpu_s(), time.monotonic()
        took_s = ended - began
        change = {name: after[name] - before.get(name, 0.0) for name in after}
        polls = change["aliquot_agent_poll_seconds_count"]
        return {
            "seconds": round(took_s, 1),
            "cpu_cores": round((cpu_after - cpu_before) / took_s, 4),
            "poll_ms": round(change["aliquot_agent_poll_seconds_sum"] / polls * 1e3, 2),
            "poll_p99_ms": _p99_ms(change, polls),
            "calls_per_poll": round(change["aliquot_agent_driver_calls_total"] / polls, 2),
            "polls_per_s": round(polls / took_s, 2),
            "calls_per_s": round(change["aliquot_agent_driver_calls_total"] / took_s, 1),
            "rss_mb": round(self._rss_bytes() / 2**20, 1),
        }

    def _scrape(self) -> dict[str, float]:
        with urllib.request.urlopen(self.metrics, timeout=30) as answer:
            text = answer.read().decode()
        found: dict[str, float] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.startswith(("aliquot_agent_poll", "aliquot_agent_driver")):
                    bound = sample.labels.get("le", "")
                    found[f"{sample.name}|{bound}" if bound else sample.name] = sample.value
        return found

    def _cpu_s(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _rss_bytes(self) -> int:
        return int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _p99_ms(change: dict[str, float], polls: float) -> float:
    """The upper bound of the histogram's bucket in which 99 % of the polls are."""
    buckets = [(name.partition("|")[2], count) for name, count in change.items() if "_bucket|" in name]
    for bound, count in sorted(buckets, key=lambda each: float(each[0])):
        if count >= 0.99 * polls:
            return round(float(bound) * 1e3, 2)
    return float("inf")
