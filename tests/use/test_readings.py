"""What the monitor makes of what Prometheus says, number by number."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from aliquot.common.utilisation import Utilisation, Weights, percent, score, status_of
from aliquot.console.monitor.rating import rate, stats
from aliquot.console.monitor.readings import KNOWN_PART_MIN, SERIES, Reading, Window, read

WINDOW = Window(window_s=600, step_s=30)
STEPS = 20


def prometheus(series: Mapping[str, Sequence[tuple[Mapping[str, str], object]]], *, steps: float = STEPS) -> Any:
    """Answers queries for the mean of a series, and for how many steps of it there are."""

    def ask(query: str) -> Mapping[str, Any]:
        found = re.fullmatch(r'(\w+)_over_time\((\w+)\{pod!=""\}\[600s:30s\]\)', query)
        assert found, query
        what, name = found.groups()
        word = next(word for word, series_name in SERIES.items() if series_name == name)
        told = series.get(word, [])
        return {
            "data": {
                "result": [{"metric": each, "value": [0, value if what == "avg" else steps]} for each, value in told]
            }
        }

    return ask


def card(**labels: str) -> Mapping[str, str]:
    return {"UUID": "GPU-a", "pod": "p", "namespace": "n", "modelName": "A100", "Hostname": "h", **labels}


@pytest.mark.parametrize(("steps", "known"), [(0, 0.0), (10, 0.5), (STEPS, 1.0), (STEPS + 1, 1.0), (2 * STEPS, 1.0)])
def test_of_how_much_of_the_window_a_card_was_seen(steps: int, known: float) -> None:
    (found,) = read(prometheus({"gpu_util": [(card(), "50")]}, steps=steps), WINDOW)
    assert found.known_part == known


def test_a_card_is_told_apart_by_instance_pod_and_namespace_and_named_after_what_there_is() -> None:
    told = [
        (card(), "1"), (card(GPU_I_ID="7"), "2"), (card(pod="q"), "3"), (card(namespace="m"), "4"),
        ({"instance": "10.0.0.1:9400", "gpu": "3"}, "5"),
    ]  # fmt: skip
    found = {(each.gpu_id, each.namespace, each.pod): each for each in read(prometheus({"gpu_util": told}), WINDOW)}
    assert {key: each.values["gpu_util"] for key, each in found.items()} == {
        ("GPU-a", "n", "p"): 1,
        ("GPU-a/7", "n", "p"): 2,
        ("GPU-a", "n", "q"): 3,
        ("GPU-a", "m", "p"): 4,
        ("10.0.0.1:9400/3", "", ""): 5,
    }
    assert found["10.0.0.1:9400/3", "", ""].hostname == "10.0.0.1:9400"


def test_a_tenant_is_its_label_else_its_namespace() -> None:
    series = {"gpu_util": [(card(team="vision"), "1"), (card(pod="q"), "1")]}
    assert [each.tenant for each in read(prometheus(series), WINDOW, "team")] == ["vision", "n"]
    assert [each.tenant for each in read(prometheus(series), WINDOW)] == ["n", "n"]


@pytest.mark.parametrize("value", ["NaN", "nonsense", None, [], {}])
def test_a_value_that_is_none_is_passed_over(value: object) -> None:
    series = {"gpu_util": [(card(), "5"), (card(pod="q"), value)]}
    assert [each.pod for each in read(prometheus(series), WINDOW)] == ["p"]


@pytest.mark.parametrize(
    ("window", "said"),
    [
        (Window(step_s=0), "a step of 0 s"),
        (Window(window_s=30, step_s=31), "a step of 31 s"),
        (Window(condition='{a="b"}}'), "the condition"),
        (Window(condition='up{a="b"}'), "the condition"),
    ],
)
def test_a_window_that_can_not_be(window: Window, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        window.check()


def test_windows_that_can_be() -> None:
    for window in (Window(window_s=30, step_s=30), Window(condition=""), Window(condition='{a="b"}')):
        window.check()


def reading(known: float = 1.0, pod: str = "p", gpu: str = "GPU-a", tenant: str = "t", **values: float) -> Reading:
    return Reading(gpu, pod, tenant, "h", "A100-40", tenant, values, known)


def test_a_row_is_judged_by_what_is_known_of_it() -> None:
    (row,) = rate(
        [reading(gpu_util=40, mem_copy=10, mem_used_mb=10_000, mem_free_mb=30_000, power_usage=100, power_limit=400)]
    )
    assert (row.mem_used, row.score, row.status) == (
        25.0,
        0.5 * 40 + 0.2 * 10 + 0.2 * 25 + 0.1 * 25,
        Utilisation.NORMAL,
    )
    (row,) = rate([reading(engine=0.4)])
    assert (row.gpu_util, row.score) == (40.0, 40.0), "what is not told counts neither for nor against it"
    (row,) = rate([reading(gpu_util=0, engine=0.9)])
    assert row.gpu_util == 0
    (row,) = rate([reading(gpu_util=5, mem_used_mb=20_480)])
    assert row.mem_used == 50.0, "of the model's memory, where what is free is not told"
    assert row.is_low is (row.status in {Utilisation.IDLE, Utilisation.LOW})


def test_who_was_not_seen_enough_is_not_judged() -> None:
    just, less = rate([reading(KNOWN_PART_MIN, gpu_util=0), reading(KNOWN_PART_MIN - 0.01, "q", gpu_util=0)])
    assert (just.status, just.why_unknown, just.is_low) == (Utilisation.IDLE, "", True)
    assert (less.status, less.score, less.is_low) == (Utilisation.UNKNOWN, None, False)
    assert less.why_unknown == "it was seen for 79% of the window"
    (mute,) = rate([reading(mem_copy=5)])
    assert mute.why_unknown == "how busy it is is not told"


def test_rows_stand_lowest_first_and_the_unknown_last() -> None:
    rows = rate(
        [
            reading(pod="mute"),
            reading(pod="high", gpu_util=90),
            reading(pod="zero", gpu_util=0),
            reading(pod="low", gpu_util=5),
        ]
    )
    assert [row.pod for row in rows] == ["zero", "low", "high", "mute"]


def test_sums() -> None:
    rows = rate([
        reading(gpu="GPU-a", gpu_util=0), reading(gpu="GPU-a", pod="q", gpu_util=15, tenant="s"),
        reading(gpu="GPU-b", gpu_util=90), reading(gpu="GPU-c"),
    ])  # fmt: skip
    found = stats(rows)
    assert (found["total_gpus"], found["avg_score"], found["min_score"], found["max_score"]) == (3, 35.0, 0.0, 90.0)
    assert (found["low_utilization_count"], found["idle_count"]) == (2, 1)
    assert found["by_status"] == {"idle": 1, "low": 1, "normal": 0, "high": 1, "unknown": 1}
    assert found["by_tenant"]["s"] == {"gpus": 1, "avg_score": 15.0, "low_utilization_count": 1}
    assert found["by_tenant"]["t"] == {"gpus": 3, "avg_score": 45.0, "low_utilization_count": 1}
    nothing = stats([])
    assert (nothing["total_gpus"], nothing["avg_score"], nothing["min_score"], nothing["by_tenant"]) == (
        0,
        None,
        None,
        {},
    )
    assert stats(rate([reading()]))["by_tenant"]["t"]["avg_score"] is None


def test_the_score_s_bounds() -> None:
    assert [status_of(value) for value in (0, 9.99, 10, 19.99, 20, 70, 70.01, None)] == [
        Utilisation.IDLE, Utilisation.IDLE, Utilisation.LOW, Utilisation.LOW, Utilisation.NORMAL, Utilisation.NORMAL,
        Utilisation.HIGH, Utilisation.UNKNOWN,
    ]  # fmt: skip
    assert score(100, 100, 100, 100) == 100
    assert score(None, 50, 50, 50) is None
    assert score(50, None, None, 100, Weights(1, 1, 1, 1)) == 75
    assert score(50, None, None, None, Weights(0, 1, 1, 1)) is None
    assert (percent(1, 0), percent(None, 5), percent(5, None), percent(6, 5), percent(0, 5)) == (
        None,
        None,
        None,
        100,
        0,
    )
