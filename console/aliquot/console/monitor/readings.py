"""What Prometheus says of cards: means over a window of dcgm-exporter's series, a reading for each card and pod."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final
from urllib.parse import urlencode

from aliquot.common.https import exchange
from aliquot.common.urls import HttpError

ANSWER_BYTES_MAX: Final = 64 << 20
QUERY_S: Final = 30.0
KNOWN_PART_MIN: Final = 0.8
"""Of the window: whoever was seen for less of it may have been busy meanwhile."""
SERIES: Final = MappingProxyType(
    {
        "gpu_util": "DCGM_FI_DEV_GPU_UTIL",
        # Of MIG instances, which have no GPU_UTIL.
        "engine": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
        "mem_copy": "DCGM_FI_DEV_MEM_COPY_UTIL",
        "mem_used_mb": "DCGM_FI_DEV_FB_USED",
        "mem_free_mb": "DCGM_FI_DEV_FB_FREE",
        "power_usage": "DCGM_FI_DEV_POWER_USAGE",
        "power_limit": "DCGM_FI_DEV_POWER_MGMT_LIMIT",
        "sm_clock": "DCGM_FI_DEV_SM_CLOCK",
    }
)
"""Our word for a value: the exporter's series. Memory is in MiB, power in watts."""
_CONDITION: Final = re.compile(r"\{[^{}]*\}|")


@dataclass(frozen=True, slots=True)
class Window:
    """What is asked for: which series, over which time, looked at how often."""

    condition: str = '{pod!=""}'
    """A selector in PromQL; empty: all."""
    window_s: int = 600
    step_s: int = 30

    def check(self) -> None:
        """Raises ValueError."""
        if not _CONDITION.fullmatch(self.condition):
            raise ValueError(f'the condition is {self.condition[:80]!r}; write a selector such as {{pod!=""}}')
        if not 0 < self.step_s <= self.window_s:
            raise ValueError(f"a step of {self.step_s} s in a window of {self.window_s} s; it is at most the window")


@dataclass(frozen=True, slots=True)
class Reading:
    """One card, or instance of one, as one pod has it."""

    gpu_id: str
    """The UUID, with `/` and the instance's number behind it where it is one."""
    pod: str
    namespace: str
    hostname: str
    model_name: str
    tenant: str
    values: Mapping[str, float]
    """By the words of `SERIES`; absent: not told."""
    known_part: float
    """Of the window in which it was told how busy the card is, 0 to 1."""

    def value(self, word: str) -> float | None:
        """None: not told."""
        return self.values.get(word)


Ask = Callable[[str], Mapping[str, Any]]
"""The answer to an instant query. Raises HttpError."""


def asker(url: str, token: str = "") -> Ask:
    """Asks this Prometheus. A token goes by https:// alone, or to this machine."""

    def ask(query: str) -> Mapping[str, Any]:
        answer = exchange(
            f"{url.rstrip('/')}/api/v1/query?{urlencode({'query': query})}",
            token=token,
            timeout_s=QUERY_S,
            bytes_max=ANSWER_BYTES_MAX,
            public=not token,
        )
        if answer.document.get("status") != "success":
            said = answer.document.get("error") or f"status {answer.status}"
            hint = "PROM_URL names a Prometheus, QUERY_CONDITION a selector in PromQL"
            raise HttpError(f"{url} does not answer {query}: {json.dumps(said)[:300]}", hint=hint)
        return answer.document

    return ask


def read(ask: Ask, window: Window, tenant_label: str = "") -> list[Reading]:
    """A reading for each series that tells how busy a card is. Raises HttpError."""
    over = f"[{window.window_s}s:{window.step_s}s]"
    found: dict[_Key, dict[str, float]] = {}
    labels: dict[_Key, Mapping[str, str]] = {}
    seen: dict[_Key, float] = {}
    for word, series in SERIES.items():
        selected = f"{series}{window.condition}"
        for told, value in _samples(ask(f"avg_over_time({selected}{over})")):
            key = _key(told)
            found.setdefault(key, {})[word] = value
            labels.setdefault(key, told)
        if word in {"gpu_util", "engine"}:
            for told, steps in _samples(ask(f"count_over_time({selected}{over})")):
                part = steps * window.step_s / window.window_s
                seen[_key(told)] = max(seen.get(_key(told), 0.0), min(1.0, part))
    # Where Prometheus keeps its own labels, the pod that has a card is `exported_pod`, and `pod` is the exporter's.
    exported = any("exported_pod" in told for told in labels.values())
    return [
        _reading(labels[key], found[key], seen.get(key, 0.0), tenant_label, exported=exported) for key in sorted(found)
    ]


_Key = tuple[str, str, str, str]


def _key(told: Mapping[str, str]) -> _Key:
    pod = told.get("exported_pod", told.get("pod", ""))
    card = told.get("UUID") or f"{told.get('Hostname', told.get('instance', ''))}/{told.get('gpu', '')}"
    return card, told.get("GPU_I_ID", ""), told.get("exported_namespace", told.get("namespace", "")), pod


def _reading(
    told: Mapping[str, str], values: Mapping[str, float], known: float, tenant_label: str, *, exported: bool
) -> Reading:
    card, instance, *_ = _key(told)
    before = "exported_" if exported else ""
    namespace = told.get(f"{before}namespace", "")
    return Reading(
        gpu_id=f"{card}/{instance}" if instance else card,
        pod=told.get(f"{before}pod", ""),
        namespace=namespace,
        hostname=told.get("Hostname", told.get("instance", "")),
        model_name=told.get("modelName", ""),
        tenant=told.get(tenant_label, namespace) if tenant_label else namespace,
        values=values,
        known_part=known,
    )


def _samples(document: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, str], float]]:
    """Labels and values of an instant vector; whatever is none is passed over."""
    data = document.get("data")
    for each in data.get("result", ()) if isinstance(data, dict) else ():
        try:
            value = float(each["value"][1])
            told = {str(name): str(label) for name, label in each["metric"].items()}
        except (KeyError, TypeError, ValueError, IndexError, AttributeError):
            continue
        if value == value:  # noqa: PLR0124 - not NaN
            yield told, value
