"""A board as Grafana's JSON, by Grafana's own typed builders: they are what keeps its shape right without a server."""

from __future__ import annotations

from typing import TypeAlias

from grafana_foundation_sdk.builders import common as common_builders
from grafana_foundation_sdk.builders import dashboard, prometheus, stat, table, timeseries
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models.common import StackingMode, VisibilityMode
from grafana_foundation_sdk.models.dashboard import (
    DashboardLinkType,
    DataSourceRef,
    GridPos,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from tools.monitoring.panels import Board, Kind, Panel

_COLUMNS = 24
_SOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_COLOURS = ("green", "orange", "red")
_Builder: TypeAlias = timeseries.Panel | stat.Panel | table.Panel


def as_json(board: Board) -> str:
    """The file that Grafana imports, or is provisioned with."""
    built = (
        dashboard.Dashboard(board.title)
        .uid(board.uid)
        .description(board.what)
        .tags(["aliquot"])
        .refresh("30s")
        .time("now-6h", "now")
        .readonly()
        .link(
            dashboard.DashboardLink("Aliquot")
            .type(DashboardLinkType.DASHBOARDS)
            .tags(["aliquot"])
            .as_dropdown(True)
            .keep_time(True)
        )
        .with_variable(dashboard.DatasourceVariable("datasource").label("Prometheus").type("prometheus"))
    )
    for variable in board.variables:
        built = built.with_variable(
            dashboard.QueryVariable(variable.name)
            .label(variable.label)
            .query(variable.query)
            .datasource(_SOURCE)
            .multi(True)
            .include_all(True)
            .all_value(".*")
        )
    x = y = tallest = 0
    for panel in board.panels:
        if x + panel.width > _COLUMNS:
            x, y, tallest = 0, y + tallest, 0
        built = built.with_panel(_panel(panel, GridPos(h=panel.height, w=panel.width, x=x, y=y)))
        x, tallest = x + panel.width, max(tallest, panel.height)
    return JSONEncoder(sort_keys=True, indent=2, ensure_ascii=False).encode(built.build()) + "\n"


def _panel(panel: Panel, where: GridPos) -> _Builder:
    builder: _Builder
    if panel.kind is Kind.NUMBER:
        builder = stat.Panel()
    elif panel.kind is Kind.TABLE:
        builder = table.Panel()
    else:
        builder = timeseries.Panel().fill_opacity(10).show_points(VisibilityMode.NEVER)
        if panel.kind is Kind.STACK:
            builder = builder.fill_opacity(40).stacking(
                common_builders.StackingConfig().mode(StackingMode.NORMAL).group("A")
            )
    builder = builder.title(panel.title).description(panel.what).unit(panel.unit.value)
    builder = builder.datasource(_SOURCE).grid_pos(where).thresholds(_thresholds(panel))
    for number, query in enumerate(panel.queries):
        asked = prometheus.Dataquery().expr(query.expr).ref_id(chr(ord("A") + number))
        if query.legend:
            asked = asked.legend_format(query.legend)
        if panel.kind is Kind.TABLE:
            asked = asked.instant().format(PromQueryFormat.TABLE)
        elif panel.kind is Kind.NUMBER:
            asked = asked.instant()
        builder = builder.with_target(asked)
    return builder


def _thresholds(panel: Panel) -> dashboard.ThresholdsConfig:
    steps = [Threshold(value=None, color=_COLOURS[0])]
    steps += [Threshold(value=at, color=colour) for at, colour in zip(panel.thresholds, _COLOURS[1:], strict=False)]
    return dashboard.ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
