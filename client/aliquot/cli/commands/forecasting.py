"""`forecast`: demand as it is expected to be, and how good forecasts were."""

from __future__ import annotations

import argparse
import time

from aliquot.cli import _options as options
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._out import Out
from aliquot.cli._table import table
from aliquot.client import Pool
from aliquot.client.forecast import Forecast, ForecastHour, ForecastSeries

_HOURS = (1, 6, 24)
_METHODS = {
    "median": "median of four",
    "last": "last value: too little is known",
    "withdrawn": "withdrawn: last value and headroom",
    "": "none",
}


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "SERIES is tenant/NAME, model/NAME, pool/NAME or `all`: then each hour is shown. Demand is what is held and\n"
        "what waits, in devices. Brackets hold 90 % of what comes. MASE below 1 beats the better of the last value\n"
        "and the same hour of the day before. No grant is decided by a forecast."
    )
    parser.add_argument("series", metavar="SERIES", nargs="?", default=None)
    parser.add_argument(
        "--backtest", action="store_true", help="how good forecasts were, made with what was known then"
    )
    parser.add_argument("--hours", type=int, default=24, metavar="N", help="of SERIES: so many ahead, at most 168 (24)")


def _forecast(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    series = None if args.series is None else "" if args.series == "all" else args.series
    found = pool.forecast(series)
    out.document(found)
    if not found.from_ms:
        out.note(
            f"no forecast yet: {found.hours_known} hours are known; one is made once an hour is over"
            if found.hours_known
            else "no forecast: no hour is known; the coordinator's setting `forecast = true` has them taken down"
        )
    if args.backtest:
        _show_scores(out, found)
    elif args.series is not None:
        _show_hours(out, found, args.hours)
    else:
        _show(out, found)


def _show(out: Out, found: Forecast) -> None:
    now = [("IN " + str(ahead) + " H", "right") for ahead in _HOURS]
    rows = [
        (
            _name(series),
            *(_bounded(_ahead(series, ahead)) for ahead in _HOURS),
            _peak(series),
            _METHODS.get(series.method, series.method),
        )
        for series in found.series
    ]
    out.show(table("SERIES", *now, "PEAK OF THE WEEK", "BY", rows=rows))


def _show_scores(out: Out, found: Forecast) -> None:
    rows = [
        (
            _name(series),
            str(score.origins),
            f"{score.mase:.2f}",
            f"{score.ratio:.2f}",
            f"{score.ratio_6h:.2f}",
            f"{score.pinball:.3f}",
            f"{score.coverage:.0%}",
            f"{score.coverage_1h:.0%} {score.coverage_6h:.0%} {score.coverage_24h:.0%}",
            f"{score.coverage_week:.0%}" + (" withdrawn" if series.method == "withdrawn" else ""),
        )
        for series in found.series
        if (score := series.score) is not None
    ]
    if not rows:
        out.note("no forecast could be tried out yet: that takes a week of history or so")
        return
    columns = ("FORECASTS", "MASE", "24 H", "FIRST 6 H", "PINBALL", "COVERED", "AT 1, 6, 24 H")
    out.show(table("SERIES", *((name, "right") for name in columns), "LATEST WEEK", rows=rows))


def _show_hours(out: Out, found: Forecast, hours: int) -> None:
    for series in found.series:
        past = [hour for hour in series.hours if hour.past]
        ahead = [hour for hour in series.hours if not hour.past][:hours]
        rows = [
            (_time(hour), _devices(hour.milli), "was" if hour.past else _range(hour)) for hour in past[-24:] + ahead
        ]
        out.show(table("HOUR (UTC)", ("DEVICES", "right"), _name(series).upper(), rows=rows))
    if not found.series:
        out.note("nothing is known of such a series")


def _ahead(series: ForecastSeries, ahead: int) -> ForecastHour | None:
    coming = [hour for hour in series.hours if not hour.past]
    return coming[ahead - 1] if ahead <= len(coming) else None


def _bounded(hour: ForecastHour | None) -> str:
    if hour is None:
        return words.UNKNOWN
    between = _range(hour)
    return _devices(hour.milli) + (f" [{between}]" if between else "")


def _range(hour: ForecastHour) -> str:
    if hour.high_milli is None:
        return ""
    low = "…" if hour.low_milli is None else _devices(hour.low_milli)
    return f"{low}-{_devices(hour.high_milli)}"


def _peak(series: ForecastSeries) -> str:
    coming = [hour for hour in series.hours if not hour.past and hour.milli is not None]
    if not coming or series.method != "median":
        return words.UNKNOWN
    top = max(coming, key=lambda hour: hour.milli or 0)
    return f"{_devices(top.milli)} at {_time(top)}"


def _devices(milli: int | None) -> str:
    return words.UNKNOWN if milli is None else f"{milli / 1000:.1f}"


def _time(hour: ForecastHour) -> str:
    return time.strftime("%a %d %b %H:00", time.gmtime(hour.start_ms / 1000))


def _name(series: ForecastSeries) -> str:
    return f"{series.kind}/{series.name}" if series.kind else "all"


FORECAST = Work(_configure, options.on_pool(_forecast))
