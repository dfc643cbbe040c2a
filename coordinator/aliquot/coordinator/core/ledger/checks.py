"""What prices may be declared."""

from __future__ import annotations

from aliquot.coordinator.core.errors import InvalidField
from aliquot.coordinator.core.ledger.rates import RateCard

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
