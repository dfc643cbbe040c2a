"""What the monitor serves: rows and sums as JSON, metrics, and a page that needs no script."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Iterable, Iterator
from html import escape
from typing import Any, Final

from fastapi import FastAPI, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.responses import JSONResponse
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from aliquot.common.gauges import Metric, gauge, gauges_by
from aliquot.console.monitor.rating import COLUMNS, NUMBERS, Row, shown, stats
from aliquot.console.monitor.watching import Watching

ROWS_MAX: Final = 10_000
"""Of series that are served, and rows of the page; REST gives all."""
SHOWN_MAX: Final = 1_000
_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'"


def make_app(watching: Watching) -> FastAPI:
    """It looks while it serves."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        looking = asyncio.create_task(watching.run())
        try:
            yield
        finally:
            looking.cancel()

    app = FastAPI(title="aliquot watch-use", docs_url=None, redoc_url=None, lifespan=lifespan)
    scores = Scores(watching)

    @app.get("/")
    async def about(request: Request) -> Response:
        """For browsers the page, for programs what this is."""
        if "text/html" in request.headers.get("accept", ""):
            return Response(page(watching), headers={"content-security-policy": _POLICY}, media_type="text/html")
        settings = dataclasses.asdict(watching.settings) | {"prom_token": ""}
        return _json({"service": "aliquot watch-use", "config": settings, "last_look": watching.seen.at})

    @app.get("/health")
    async def health() -> Response:
        """Alive in any case; `stale` where the last look failed."""
        seen = watching.seen
        status = "healthy" if seen.at and not seen.error else "stale" if seen.at or seen.error else "starting"
        return _json({"status": status, "last_look": seen.at, "error": seen.error})

    @app.api_route("/analyze", methods=["GET", "POST"], status_code=202)
    async def analyze() -> Response:
        """Look as soon as may be, instead of after the interval."""
        watching.look_soon()
        return _json({"status": "started"}, 202)

    @app.get("/results")
    async def results(namespace: str = "", tenant: str = "", pod: str = "") -> Response:
        """All rows, or one namespace's, tenant's, pod's."""
        wanted = {name: want for name, want in (("namespace", namespace), ("tenant", tenant), ("pod", pod)) if want}
        rows = (row.document() for row in watching.seen.rows)
        return _json([row for row in rows if wanted.items() <= row.items()])

    @app.get("/results/low")
    async def results_low() -> Response:
        """Those below the threshold; nobody of whom it is not known."""
        rows = [row for row in watching.seen.rows if row.is_low]
        bound = watching.settings.bounds.low
        return _json({"count": len(rows), "threshold": bound, "gpus": [row.document() for row in rows]})

    @app.get("/results/stats")
    async def results_stats() -> Response:
        """Sums."""
        return _json(stats(watching.seen.rows))

    @app.get("/metrics")
    async def metrics() -> Response:
        """For Prometheus."""
        return Response(generate_latest(scores), media_type=CONTENT_TYPE_LATEST)

    return app


def _json(document: Any, status: int = 200) -> Response:  # noqa: ANN401 - whatever JSON can say
    return JSONResponse(jsonable_encoder(document), status)


class Scores:
    """The rows as series."""

    def __init__(self, watching: Watching) -> None:
        self._watching = watching

    def collect(self) -> Iterator[Metric]:
        """See prometheus_client."""
        names = ("gpu_id", "pod", "namespace", "tenant", "hostname", "model_name")
        scores = gauge("aliquot_watch_use_score", "Weighted score of use, 0 to 100", labels=names)
        for row in self._watching.seen.rows[:ROWS_MAX]:
            if row.score is not None:
                scores.add_metric([getattr(row, name) for name in names], row.score)
        yield scores
        counts = [([status], count) for status, count in stats(self._watching.seen.rows)["by_status"].items()]
        what = "Cards and pods by what their score is called"
        yield gauges_by(["status"], "aliquot_watch_use_cards", what, counts)
        at_s = seen.timestamp() if (seen := self._watching.seen.at) else 0
        yield gauge("aliquot_watch_use_last_look_seconds", "Since 1970: the last look that succeeded", at_s)


_STYLE: Final = """
:root{color-scheme:light dark;font:15px/1.45 system-ui,sans-serif}body{margin:2rem auto;max-width:76rem;padding:0 1rem}
h1{font-size:1.3rem}table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.35rem .6rem}
th{font-weight:600;border-bottom:1px solid #8888}
td.n{text-align:right;white-space:nowrap;font-variant-numeric:tabular-nums}
tr:nth-child(even){background:#8881}dl{display:flex;flex-wrap:wrap;gap:1rem 2.5rem;margin:1rem 0 1.5rem}dt{opacity:.75}
dd{margin:0;font-size:1.5rem;font-weight:600}meter{width:9rem}.error{border-left:4px solid #c33;padding:.4rem .8rem}
"""


def page(watching: Watching) -> str:
    """The rows as a table, lowest score first. It reloads itself every half minute."""
    seen, bounds = watching.seen, watching.settings.bounds
    sums = stats(seen.rows)
    facts = {"Cards": sums["total_gpus"], "Mean score": shown(sums["avg_score"])} | {
        str(status).capitalize(): count for status, count in sums["by_status"].items()
    }
    when = f"Seen {seen.at:%Y-%m-%d %H:%M:%S} UTC" if seen.at else "Nothing was seen yet"
    error = f'<p class="error" role="alert">{escape(seen.error)}</p>' if seen.error else ""
    more = len(seen.rows) - SHOWN_MAX
    rest = f'<p>And {more} more: <a href="/results">all of them as JSON</a>.</p>' if more > 0 else ""
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="refresh" content="30"><title>Use of cards</title><style>{_STYLE}</style>'
        f"<h1>Use of cards</h1><p>{when}; below {bounds.idle:g} idle, below {bounds.low:g} low, "
        f"above {bounds.normal:g} high.</p>{error}"
        f"<dl>{''.join(f'<div><dt>{name}</dt><dd>{value}</dd></div>' for name, value in facts.items())}</dl>"
        f"<table><thead><tr>{''.join(f'<th scope=col>{head}</th>' for head in ('', *COLUMNS))}</tr></thead>"
        f"<tbody>{''.join(_lines(seen.rows[:SHOWN_MAX]))}</tbody></table>{rest}</html>"
    )


def _lines(rows: Iterable[Row]) -> Iterator[str]:
    for row in rows:
        bar = "" if row.score is None else f'<meter min="0" max="100" value="{row.score}">{row.score}</meter>'
        cells = (
            f"<td{' class=n' if name in NUMBERS else ''}>{escape(cell(row))}</td>" for name, cell in COLUMNS.items()
        )
        yield f"<tr><td>{bar}</td>{''.join(cells)}</tr>"
