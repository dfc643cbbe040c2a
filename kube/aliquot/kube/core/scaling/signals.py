"""Figures that autoscalers ask for: of who waits, of what is expected, of what an owner's pods use."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.common.errors import AliquotError
from aliquot.kube.core.scaling.picture import Forecast, Picture, Waiting
from aliquot.kube.core.scaling.selectors import Selector, Term

LABELS: Final = ("tenant", "queue", "pool", "model")
"""By which what waits is told apart."""
FORECAST_LABELS: Final = ("tenant", "pool", "model", "hours")


class Signal(enum.StrEnum):
    """What is measured of what waits."""

    QUEUE_DEPTH = "aliquot_queue_depth"
    """How many requests and pods wait."""
    OLDEST_WAIT = "aliquot_oldest_wait_seconds"
    """For how many seconds the one has waited that has waited longest."""
    MISSING_SHARE = "aliquot_missing_gpus"
    """How many GPUs they ask for in all."""
    FORECAST = "aliquot_forecast_gpus"
    """How many GPUs will be asked for."""


class NotOffered(AliquotError):
    """The pool does not offer it."""

    reason = "NOT_OFFERED"


@dataclass(frozen=True, slots=True)
class Scope:
    """Whose figures: those of these tenants and all below them; None: the whole pool's."""

    tenants: tuple[str, ...] | None = None

    def covers(self, tenant: str) -> bool:
        """Whether a tenant is in it."""
        if self.tenants is None:
            return True
        return any(tenant == one or tenant.startswith(f"{one}/") for one in self.tenants)


def value_milli(picture: Picture, signal: Signal, scope: Scope, selector: Selector) -> int:
    """A figure in thousandths; what waits nobody chooses is 0. Raises NotOffered, SelectorError."""
    if signal is Signal.FORECAST:
        return _forecast(picture.forecasts, scope, selector.only(FORECAST_LABELS))
    selector.only(LABELS)
    chosen = [one for one in picture.waiting if scope.covers(one.tenant) and _chooses(selector, one)]
    return _FIGURES[signal](chosen, picture.at_ms)


def _depth(waiting: Sequence[Waiting], at_ms: int) -> int:
    del at_ms
    return len(waiting) * 1000


def _oldest(waiting: Sequence[Waiting], at_ms: int) -> int:
    return max((at_ms - one.since_ms for one in waiting), default=0)


def _missing(waiting: Sequence[Waiting], at_ms: int) -> int:
    del at_ms
    return sum(one.share_milli for one in waiting)


_FIGURES: Final[dict[Signal, Callable[[Sequence[Waiting], int], int]]] = {
    Signal.QUEUE_DEPTH: _depth,
    Signal.OLDEST_WAIT: _oldest,
    Signal.MISSING_SHARE: _missing,
}


def _chooses(selector: Selector, one: Waiting) -> bool:
    """A request that names several models is chosen by each."""
    labels = {"tenant": one.tenant, "queue": one.queue, "pool": one.pool}
    return any(selector.matches({**labels, "model": model}) for model in one.models or ("",))


def _forecast(forecasts: Iterable[Forecast] | None, scope: Scope, selector: Selector) -> int:
    if forecasts is None:
        raise NotOffered("this pool offers no forecast", hint="docs/autoscaling.md says what brings one")
    hours = selector.equalities.get("hours", "1")
    rest = Selector(tuple(term for term in selector.terms if term.name != "hours"))
    whose = _whose(scope, selector)
    found = [
        one
        for one in forecasts
        if str(one.hours) == hours
        and whose(one)
        and rest.matches({"tenant": one.tenant, "pool": one.pool, "model": one.model})
    ]
    if not found:
        raise NotOffered(f"the pool has no forecast for that, {hours} h ahead")
    return sum(one.share_milli for one in found)


def _whose(scope: Scope, selector: Selector) -> Callable[[Forecast], bool]:
    """Series of tenants where tenants are asked for, else those of whole pools: never both, which would count twice."""
    if scope.tenants is None and "tenant" not in {term.name for term in selector.terms}:
        return lambda one: not one.tenant
    return lambda one: bool(one.tenant) and scope.covers(one.tenant)


def chosen_by(tenant: str = "", queue: str = "", pool: str = "", model: str = "", hours: str = "") -> Selector:
    """A selector of those that are given."""
    given = {"tenant": tenant, "queue": queue, "pool": pool, "model": model, "hours": hours}
    return Selector(tuple(Term(name, (value,), wanted=True) for name, value in given.items() if value))
