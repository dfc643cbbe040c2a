"""Prices: what an administrator declares, in millionths of the currency."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from operator import attrgetter

import msgspec

from aliquot.common import catalog
from aliquot.coordinator.core.books.ledger.entries import Entry, EntryKind
from aliquot.coordinator.core.values.errors import InvalidField

ANY_MODEL = catalog.ANY_KIND


class ModelRate(msgspec.Struct, frozen=True, array_like=True):
    """What a device model costs. A part of a device costs its part of the share, and its memory."""

    model: str
    """Or a family, or a vendor (`amd`): see `catalog.covers`; `*` for all that are not named."""
    gpu_hour_micro: int
    """For a whole device (1000 thousandths) for an hour."""
    gib_hour_micro: int = 0
    """For a GiB of leased device memory for an hour, on top."""


class Tier(msgspec.Struct, frozen=True, array_like=True):
    """A volume discount on what is used beyond a threshold within one invoice: never on what came before it."""

    above_gpu_milli_hours: int
    discount_permille: int


class RateCard(msgspec.Struct, frozen=True, omit_defaults=True):
    """All prices that hold from one moment to the next change."""

    currency: str = "credits"
    rates: tuple[ModelRate, ...] = ()
    tiers: tuple[Tier, ...] = ()
    """By ascending threshold."""
    minimum_ms: int = 60_000
    """A slice that was charged for less time than this pays for this much."""

    def rate_of(self, model: str) -> ModelRate | None:
        """The price of a model: its own, or that of its family, of its vendor, of all; None: it has none, and its use
        is listed as unpriced.
        """
        found: ModelRate | None = None
        for rate in self.rates:
            if rate.model == model:
                return rate
            applies = rate.model == ANY_MODEL or catalog.covers(rate.model, model)
            if applies and (found is None or catalog.nearness(rate.model) > catalog.nearness(found.model)):
                found = rate
        return found


class DatedRates(msgspec.Struct, frozen=True):
    """A rate card and when it began to hold."""

    from_ms: int
    card: RateCard
    version: int


class PriceHistory(msgspec.Struct, frozen=True):
    """All prices there ever were, by ascending time. Immutable, so that invoices can be made beside the writer."""

    dated: tuple[DatedRates, ...] = ()

    @property
    def version(self) -> int:
        """Of the prices in force; 0: none were ever declared."""
        return self.dated[-1].version if self.dated else 0

    @property
    def latest(self) -> RateCard | None:
        """The prices in force."""
        return self.dated[-1].card if self.dated else None

    def at(self, at_ms: int) -> RateCard | None:
        """The prices in force at a moment."""
        dated = self._dated(at_ms)
        return dated.card if dated is not None else None

    def since_ms(self, at_ms: int) -> int:
        """When the prices in force at a moment began to hold; 0: there were none."""
        dated = self._dated(at_ms)
        return dated.from_ms if dated is not None else 0

    def _dated(self, at_ms: int) -> DatedRates | None:
        count = bisect_right(self.dated, at_ms, key=attrgetter("from_ms"))
        return self.dated[count - 1] if count else None

    def cut(self, entry: Entry) -> Iterator[tuple[Entry, RateCard | None]]:
        """An entry cut where prices changed, each part with its prices."""
        # Prices may be declared twice within a millisecond: only the later ones ever held, and nothing is cut twice.
        cuts = dict.fromkeys(dated.from_ms for dated in self.dated if entry.from_ms < dated.from_ms < entry.to_ms)
        start = entry.from_ms
        for end in [*cuts, entry.to_ms]:
            part = entry.within(start, end) if end > start else entry
            if part is not None:
                yield part, self.at(start)
            start = end

    def minimum_extra_ms(self, entry: Entry) -> int:
        """By how much an entry falls short of the minimum billing period that held when it began."""
        if entry.kind is not EntryKind.USAGE:
            return 0
        card = self.at(entry.from_ms)
        return max(0, card.minimum_ms - (entry.to_ms - entry.from_ms)) if card is not None else 0


# --------------------
# What prices may be declared.


PRICE_MICRO_MAX = 10**15
_NAME_CHARS_MAX = 64


def check_rates(card: RateCard, path: str) -> None:
    """Ranges of a rate card. Raises InvalidField."""
    models = [rate.model for rate in card.rates]
    if len(set(models)) != len(models):
        raise InvalidField(f"{path}.rates", "a model is priced twice")
    if not card.currency or len(card.currency) > _NAME_CHARS_MAX or not card.currency.isprintable():
        raise InvalidField(f"{path}.currency", "needs a printable name of up to 64 characters")
    for number, rate in enumerate(card.rates):
        where = f"{path}.rates[{number}]"
        if not rate.model:
            raise InvalidField(
                f"{where}.model", "is empty", hint="name a model, a vendor, or * for all that are not named"
            )
        _range(f"{where}.gpu_hour_micro", rate.gpu_hour_micro, 0, PRICE_MICRO_MAX)
        _range(f"{where}.gib_hour_micro", rate.gib_hour_micro, 0, PRICE_MICRO_MAX)
    _range(f"{path}.minimum_ms", card.minimum_ms, 0, 86_400_000)
    above = -1
    for number, tier in enumerate(card.tiers):
        where = f"{path}.tiers[{number}]"
        _range(f"{where}.discount_permille", tier.discount_permille, 0, 1000)
        _range(f"{where}.above_gpu_milli_hours", tier.above_gpu_milli_hours, 0, 10**15)
        if tier.above_gpu_milli_hours <= above:
            raise InvalidField(f"{where}.above_gpu_milli_hours", "thresholds must rise")
        above = tier.above_gpu_milli_hours


def _range(path: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidField(path, f"{value} is not within {lowest}..{highest}")
