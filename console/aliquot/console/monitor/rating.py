"""From readings to rows that people and programs read: a score each, what it is called, and sums of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, Final

from aliquot.common import catalog
from aliquot.common.utilisation import (
    USUAL_BOUNDS,
    USUAL_WEIGHTS,
    Bounds,
    Utilisation,
    Weights,
    percent,
    score,
    status_of,
)
from aliquot.console.monitor.readings import KNOWN_PART_MIN, Reading

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One card as one pod uses it. Memory in MiB, power in watts, clock in MHz, the rest in percent; None: not told."""

    gpu_id: str
    pod: str
    namespace: str
    tenant: str
    hostname: str
    model_name: str
    gpu_util: float | None
    mem_copy: float | None
    mem_used_mb: float | None
    mem_used: float | None
    power_usage: float | None
    sm_clock: float | None
    score: float | None
    status: Utilisation
    why_unknown: str = ""

    @property
    def is_low(self) -> bool:
        """Whether somebody should hear of it."""
        return self.status in {Utilisation.IDLE, Utilisation.LOW}

    def document(self) -> dict[str, Any]:
        """As REST gives it."""
        return asdict(self)


def shown(value: float | None, unit: str = "") -> str:
    """A number for people."""
    return "–" if value is None else f"{value:.0f}{unit}"


COLUMNS: Final[Mapping[str, Callable[[Row], str]]] = MappingProxyType(
    {
        "SCORE": lambda row: shown(row.score),
        "STATUS": lambda row: f"{row.status}: {row.why_unknown}" if row.why_unknown else str(row.status),
        "NAMESPACE": lambda row: row.namespace,
        "POD": lambda row: row.pod,
        "NODE": lambda row: row.hostname,
        "MODEL": lambda row: row.model_name,
        "GPU": lambda row: shown(row.gpu_util, " %"),
        "MEMORY": lambda row: shown(row.mem_used, " %"),
        "POWER": lambda row: shown(row.power_usage, " W"),
        "CARD": lambda row: row.gpu_id,
    }
)
"""What people see of a row, in a terminal and on the page."""
NUMBERS: Final = ("SCORE", "GPU", "MEMORY", "POWER")


def rate(readings: Iterable[Reading], weights: Weights = USUAL_WEIGHTS, bounds: Bounds = USUAL_BOUNDS) -> list[Row]:
    """The rows, lowest score first; whoever can't be judged stands at the end."""
    rows = [_row(reading, weights, bounds) for reading in readings]
    return sorted(rows, key=lambda row: (row.score is None, row.score or 0.0, row.gpu_id, row.pod))


def _row(reading: Reading, weights: Weights, bounds: Bounds) -> Row:
    engine = reading.value("engine")
    busy = reading.value("gpu_util")
    if busy is None and engine is not None:
        busy = 100.0 * engine
    used, free = reading.value("mem_used_mb"), reading.value("mem_free_mb")
    total = catalog.memory_total_bytes(reading.model_name)
    # Used and free leave out what the driver keeps for itself, as everybody's dashboards do.
    whole = used + free if used is not None and free is not None else total / _MIB if total else None
    mem_used = percent(used, whole)
    why = ""
    if busy is None:
        why = "how busy it is is not told"
    elif reading.known_part < KNOWN_PART_MIN:
        why = f"it was seen for {reading.known_part:.0%} of the window"
    power = percent(reading.value("power_usage"), reading.value("power_limit"))
    found = None if why else score(busy, reading.value("mem_copy"), mem_used, power, weights)
    return Row(
        gpu_id=reading.gpu_id,
        pod=reading.pod,
        namespace=reading.namespace,
        tenant=reading.tenant,
        hostname=reading.hostname,
        model_name=reading.model_name,
        gpu_util=_rounded(busy),
        mem_copy=_rounded(reading.value("mem_copy")),
        mem_used_mb=_rounded(used),
        mem_used=_rounded(mem_used),
        power_usage=_rounded(reading.value("power_usage")),
        sm_clock=_rounded(reading.value("sm_clock")),
        score=found,
        status=status_of(found, bounds),
        why_unknown=why,
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def stats(rows: Sequence[Row]) -> dict[str, Any]:
    """Sums over rows; scores are None where there is none."""
    scores = [row.score for row in rows if row.score is not None]
    by_status = Counter(row.status for row in rows)
    return {
        "total_gpus": len({row.gpu_id for row in rows}),
        "avg_score": round(sum(scores) / len(scores), 1) if scores else None,
        "min_score": min(scores, default=None),
        "max_score": max(scores, default=None),
        "low_utilization_count": sum(row.is_low for row in rows),
        "idle_count": by_status[Utilisation.IDLE],
        "by_status": {status: by_status[status] for status in Utilisation},
        "by_namespace": {name: _mean(rows, "namespace", name) for name in sorted({row.namespace for row in rows})},
        "by_tenant": {name: _mean(rows, "tenant", name) for name in sorted({row.tenant for row in rows})},
    }


def _mean(rows: Iterable[Row], field: str, name: str) -> dict[str, Any]:
    own = [row for row in rows if getattr(row, field) == name]
    scores = [row.score for row in own if row.score is not None]
    mean = round(sum(scores) / len(scores), 1) if scores else None
    return {
        "gpus": len({row.gpu_id for row in own}),
        "avg_score": mean,
        "low_utilization_count": sum(row.is_low for row in own),
    }
