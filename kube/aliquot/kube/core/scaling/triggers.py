"""What a KEDA ScaledObject asks for in its trigger's metadata.

    metric: aliquot_oldest_wait_seconds     # or aliquot_queue_depth, aliquot_missing_gpus, aliquot_forecast_gpus, …
    target: 90s
    queue: night

What is misspelt is refused: a trigger that quietly measured something else would scale something else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError, DurationError, QuantityError
from aliquot.common.quantity import parse_milli
from aliquot.kube.core.scaling.selectors import Selector
from aliquot.kube.core.scaling.signals import Signal, chosen_by
from aliquot.kube.core.scaling.usage import POD_METRICS

_KEDAS_OWN: Final = frozenset({"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey"})
"""Of metadata: for KEDA, which passes it on."""
_CHOOSES: Final = ("tenant", "queue", "pool", "model", "hours")
_KNOWN: Final = ("metric", "target", "activation", "scope", "owner", *_CHOOSES)
POOL_SCOPE: Final = "pool"
_PERCENT: Final = 100


class TriggerError(AliquotError):
    """A trigger that can't be read."""

    reason = "TRIGGER"


@dataclass(frozen=True, slots=True)
class Trigger:
    """What is measured, and from what on. Targets are in thousandths."""

    metric: str
    target_milli: int
    activation_milli: int = 0
    selector: Selector = field(default_factory=Selector)
    whole_pool: bool = False
    """Everybody's figures, not only those of the namespace's tenants."""
    owner: str = ""
    """Of metrics of pods: whose pods, such as `Deployment/web`."""

    @property
    def signal(self) -> Signal | None:
        """What of those who wait; None: it is a metric of pods."""
        return None if self.metric in POD_METRICS else Signal(self.metric)


def parse_trigger(metadata: Mapping[str, str]) -> Trigger:
    """Read one. Raises TriggerError."""
    given = {name: value.strip() for name, value in metadata.items() if name not in _KEDAS_OWN}
    for name in given:
        if name not in _KNOWN:
            raise TriggerError(f"metadata.{name[:60]} is nothing that is known", hint=f"known are {', '.join(_KNOWN)}")
    metric = given.get("metric", "")
    metrics = [*Signal, *POD_METRICS]
    if metric not in metrics:
        raise TriggerError(f"metadata.metric: {metric[:60]!r} is none", hint=f"one of {', '.join(metrics)}")
    target = parse_amount(metric, given.get("target", ""), "metadata.target")
    if target < 1:
        raise TriggerError("metadata.target is more than 0")
    activation = parse_amount(metric, given["activation"], "metadata.activation") if "activation" in given else 0
    scope, owner = given.get("scope", ""), given.get("owner", "")
    if scope not in ("", POOL_SCOPE):
        raise TriggerError(f"metadata.scope: {scope[:60]!r}", hint=f"{POOL_SCOPE}, or leave it out")
    chosen = {name: given[name] for name in _CHOOSES if given.get(name)}
    if metric in POD_METRICS:
        if chosen or scope:
            raise TriggerError(
                f"{metric} is of pods: {', '.join([*chosen, *(['scope'] if scope else [])])} says nothing"
            )
        if owner.count("/") != 1 or owner.startswith("/") or owner.endswith("/"):
            raise TriggerError("metadata.owner says whose pods are measured", hint="such as Deployment/web")
    elif owner:
        raise TriggerError(f"{metric} is of what waits: metadata.owner says nothing", hint="choose by tenant, queue, …")
    return Trigger(metric, target, activation, chosen_by(**chosen), scope == POOL_SCOPE, owner)


def parse_amount(metric: str, text: str, where: str) -> int:
    """An amount of a metric in thousandths: `60%` and `0.6`, `90s` and `90`, `2.5`. Raises TriggerError."""
    try:
        if metric in POD_METRICS and text.endswith("%"):
            return parse_milli(text.removesuffix("%").strip()) // _PERCENT
        if metric == Signal.OLDEST_WAIT and text[-1:].isalpha():
            return parse_duration_ms(text)
        return parse_milli(text)
    except (QuantityError, DurationError) as error:
        raise TriggerError(f"{where}: {error.message}", hint=_EXAMPLES.get(metric, "such as 60%")) from error


_EXAMPLES: Final[Mapping[str, str]] = {
    Signal.QUEUE_DEPTH: "such as 4",
    Signal.OLDEST_WAIT: "such as 90s",
    Signal.MISSING_SHARE: "such as 2.5",
    Signal.FORECAST: "such as 8",
}
