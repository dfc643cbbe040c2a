"""Why a pod waits, or is refused, and what would help, is said once: in events, in conditions, and by `kube plan`."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from aliquot.client import Explanation, Missing
from aliquot.kube.core import names
from aliquot.kube.holding.telling import why_not
from tests.coordinator.pool import eventually
from tests.kube.cluster import kube_cluster, scheduling
from tests.kube.making import make_pod, pod_document
from tests.kube.test_command import aliquot
from tests.kube.test_elastic_jobs import make_job, operator, status

WHOLE = {names.GPU: 1}
ASKS: dict[str, tuple[dict[str, int], dict[str, str]]] = {
    "waits": (WHOLE, {}),
    "part": ({names.GPU_PERCENT: 25}, {}),
    "model": ({}, {names.REQUEST: "0.5(H100)"}),
    "memory": ({}, {names.REQUEST: "0.5(A100),200Gi"}),
    "many": ({names.GPU: 5}, {}),
    "tier": ({names.GPU_PERCENT: 25}, {"aliquot.dev/min-tier": "driver"}),
    "torn": ({names.GPU_PERCENT: 25}, {"aliquot.dev/min-tier": "nonsense"}),
    "unread": ({}, {names.REQUEST: "half"}),
}


def twice(text: str) -> list[str]:
    """What a message says more than once: clauses of some length."""
    clauses = [each.strip(" .") for each in re.split(r"[;()\n]|: ", text)]
    return [clause for clause, times in Counter(clauses).items() if times > 1 and len(clause) > 8]


def test_what_is_said_twice_is_found() -> None:
    assert twice("it does not fit (wait for a release); smallest change: wait for a release") == ["wait for a release"]
    assert not twice("it does not fit (wait for a release)")


async def test_no_event_and_no_refusal_says_its_remedy_twice() -> None:
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "full", WHOLE)
        assert await scheduler.cycle("full")
        for name, (limits, annotations) in ASKS.items():
            make_pod(cluster.api, name, limits, annotations=annotations)
        make_pod(cluster.api, "slipped", annotations={names.REQUEST: "0.25"}, admit=False)
        for name, size in (("pair", "2"), ("lone", "1"), ("unsized", "")):
            annotations = {names.GANG_SIZE: size} if size else {}
            make_pod(cluster.api, name, WHOLE, labels={names.GANG: name}, annotations=annotations)
        asking = [name for _, name in cluster.api.pods.items if name != "full"]
        for name in asking:
            assert not await scheduler.cycle(name)
        events = cluster.api.store.kind("v1", "events").items

        def told() -> dict[str, str]:
            return {item["involvedObject"]["name"]: item["message"] for item in events.values()}

        await eventually(lambda: set(asking) <= told().keys(), "an event of each")
        said = [*told().values(), *scheduler.refusals.values()]
        assert not {text: found for text in said if (found := twice(text))}
        assert "wait for a release" in told()["waits"], "it is said, though"
        assert "allow A100-80" in told()["model"]


async def test_no_elastic_job_says_its_remedy_twice() -> None:
    async with operator(1) as cluster:
        make_job(cluster, "never", 2, 2, gpu="0.5(H100)")
        make_job(cluster, "many", 9, 9)
        for name in ("never", "many"):
            await eventually(lambda name=name: status(cluster, name).get("message"), "word of it")  # type: ignore[misc]
            assert not twice(status(cluster, name)["message"])


async def test_no_plan_says_its_remedy_twice(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    pods: list[Any] = [
        {"kind": "Pod", **pod_document(name, asks[0], annotations=asks[1])} for name, asks in ASKS.items()
    ]
    file.write_text(yaml.safe_dump_all(pods))
    async with kube_cluster(1) as cluster, scheduling(cluster) as scheduler:
        make_pod(cluster.api, "full", WHOLE)
        assert await scheduler.cycle("full")
        _, text = await aliquot(cluster, "kube", "plan", "-f", str(file))
        assert not [found for block in re.split(r"\n(?=Pod )", text) if (found := twice(block))]
        assert "wait for a release" in text


@pytest.mark.parametrize(
    ("summary", "changes", "said"),
    [
        ("full (wait)", ("wait",), "full (wait)"),
        ("full (wait)", ("", "wait"), "full (wait)"),
        ("closed on Sunday", ("give a time limit", "wait"), "closed on Sunday; smallest change: give a time limit"),
        ("full", (), "full"),
    ],
)
def test_a_remedy_that_the_summary_lacks_is_said(summary: str, changes: tuple[str, ...], said: str) -> None:
    missing = tuple(Missing("A100", "BUSY", "full", change, 1) for change in changes)
    assert why_not(Explanation(False, False, summary, missing)) == said
