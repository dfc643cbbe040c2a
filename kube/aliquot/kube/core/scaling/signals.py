"""Figures that autoscalers ask for: of who waits, of what is expected, of what an owner's pods use."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aliquot.common.errors import AliquotError
from aliquot.kube.core.scaling.picture import HOUR_MS, Picture, Waiting
from aliquot.kube.core.scaling.selectors import Selector, SelectorError, Term

LABELS: Final = ("tenant", "queue", "pool", "model")
"""By which what waits is told apart."""
FORECAST_LABELS: Final = ("tenant", "pool", "model", "hours")
_HOURS_MAX: Final = 168


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
        return _forecast(picture, scope, selector.only(FORECAST_LABELS))
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


def _forecast(picture: Picture, scope: Scope, selector: Selector) -> int:
    """Of all, or of the one pool, model or tenant that is chosen; of a namespace's tenants and all below them."""
    if picture.forecasts is None:
        raise NotOffered("this pool offers no forecast", hint="it begins when three days of demand are known")
    chosen = selector.equalities
    if len(chosen) < len(selector.terms):
        raise SelectorError("a forecast is chosen by equal labels", hint="such as tenant=research,hours=6")
    hours = chosen.pop("hours", "1")
    if not hours.isdecimal() or not 1 <= int(hours[:4]) <= _HOURS_MAX:
        raise SelectorError(f"hours={hours[:20]}: 1 to {_HOURS_MAX} ahead")
    if len(chosen) > 1:
        raise SelectorError(f"forecasts are of one: {', '.join(chosen)}", hint="of a tenant, a pool or a model")
    kind, name = next(iter(chosen.items()), ("", ""))
    if scope.tenants is not None and kind in {"pool", "model"}:
        raise NotOffered(f"a forecast of a {kind} is everybody's", hint="scope: pool, where that is allowed")
    at_ms = picture.at_ms + int(hours) * HOUR_MS
    if kind in {"pool", "model"} or (not kind and scope.tenants is None):
        found = [one.at(at_ms) for one in picture.forecasts if (one.kind, one.name) == (kind, name)]
    else:
        whose = Scope((name,)) if kind else scope
        found = [
            one.at(at_ms)
            for one in picture.forecasts
            if one.kind == "tenant" and whose.covers(one.name) and scope.covers(one.name)
        ]
    known = [value for value in found if value is not None]
    if not known:
        raise NotOffered(f"the pool has no forecast for that, {hours} h ahead")
    return sum(known)


def chosen_by(tenant: str = "", queue: str = "", pool: str = "", model: str = "", hours: str = "") -> Selector:
    """A selector of those that are given."""
    given = {"tenant": tenant, "queue": queue, "pool": pool, "model": model, "hours": hours}
    return Selector(tuple(Term(name, (value,), wanted=True) for name, value in given.items() if value))
