"""What is committed is what the code writes, asks for metrics that there are, and leads to pages that there are."""

from __future__ import annotations

import json
import re

from tests.packaging.test_metrics_page import documented
from tools.monitoring.__main__ import FOLDER, files
from tools.monitoring.dashboards import panels
from tools.monitoring.rules import LEVELS, RECORDED, WINDOWS, alerts

ROOT = FOLDER.parents[1]
_NAME = re.compile(r"\baliquot_[a-z_]+|\baliquot:[a-z0-9_:]+")
_SUFFIX = re.compile(r"_(bucket|sum|count)$")


def expressions() -> list[str]:
    shown = [query.expr for _, panel in panels() for query in panel.queries]
    levels = [text for level in LEVELS for text in (level.bad, level.all)]
    return [*shown, *levels, *(expr for _, expr in RECORDED), *(alert.expr for alert in alerts())]


def test_what_is_committed_is_what_the_code_writes() -> None:
    made = files()
    stale = [path.name for path, text in made.items() if path.read_text("utf-8") != text]
    assert not stale, "python -m tools.monitoring"
    assert set(made) == {path for path in FOLDER.rglob("*") if path.is_file()}


def test_only_metrics_that_there_are_are_asked_for() -> None:
    known = set(documented("Coordinator")) | set(documented("Agent")) | set(documented("Monitor"))
    recorded = {name for name, _ in RECORDED}
    recorded |= {f"aliquot:{level.name}:{what}_{each}" for level in LEVELS for what in ("errors", "events")
                 for each in WINDOWS}  # fmt: skip
    for expr in expressions():
        for name in _NAME.findall(expr):
            assert name in known | recorded or _SUFFIX.sub("", name) in known, f"{name} in {expr}"


def test_every_alert_leads_to_a_section_of_the_runbook() -> None:
    page = (ROOT / "docs" / "operations.md").read_text("utf-8")
    anchors = {heading.strip("# `\n").lower() for heading in re.findall(r"^#+ .*$", page, re.MULTILINE)}
    for alert in alerts():
        assert alert.name.lower() in anchors, alert.name
        assert alert.document()["annotations"]["runbook"] == f"docs/operations.md#{alert.name.lower()}"


def test_dashboards_are_such_as_grafana_reads() -> None:
    uids = set()
    for path in (FOLDER / "dashboards").glob("*.json"):
        board = json.loads(path.read_text("utf-8"))
        uids.add(board["uid"])
        assert board["schemaVersion"] == 41
        assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"])
        places = [tuple(panel["gridPos"][key] for key in "xywh") for panel in board["panels"]]
        assert len(set(places)) == len(places)
        assert all(x + w <= 24 for x, _, w, _ in places)
    assert len(uids) == len(list((FOLDER / "dashboards").glob("*.json")))
