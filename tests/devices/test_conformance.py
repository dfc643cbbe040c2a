"""What every kind of devices must do, whatever its vendor: one suite, a row a kind (`benches.BENCHES`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.devices.benches import BENCHES, GIB, Asked, Bench, Failed, Unheard

Ask = Callable[[], Asked]


@pytest.fixture(params=BENCHES)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Bench:
    return BENCHES[request.param](tmp_path)


@pytest.fixture
def started(bench: Bench) -> Iterator[Ask]:
    """Starts a backend, as often as it is called."""
    made: list[Asked] = []

    def start() -> Asked:
        made.append(Asked(bench.spec, bench.environment))
        made[-1]("open")
        return made[-1]

    yield start
    for asked in made:
        asked.close()


def uuids(asked: Asked) -> list[str]:
    return [info["uuid"] for info in asked("discover")["devices"]]


def told(asked: Asked) -> dict[str, tuple[object, ...]]:
    """By identity, what does not go by a device's number."""
    words = ("product_name", "model", "vendor", "memory_total_bytes", "pci_bus_id")
    return {info["uuid"]: tuple(info[word] for word in words) for info in asked("discover")["devices"]}


def sizes(asked: Asked, uuid: str) -> dict[int, int | None]:
    """As an agent's poll asks: for the memory first."""
    asked("memory", uuid)
    return {each["pid"]: each["memory_bytes"] for each in asked("processes", uuid)["processes"]}


def test_devices_are_who_they_were_after_a_restart(bench: Bench, started: Ask) -> None:
    first = started()("discover")["devices"]
    assert len({info["uuid"] for info in first}) == len(first) == 2
    assert started()("discover")["devices"] == first


def test_devices_are_who_they_were_when_they_are_numbered_otherwise(bench: Bench, started: Ask) -> None:
    asked = started()
    before = told(asked)
    try:
        bench.renumber()
    except Unheard as why:
        assert str(why)
        return
    for now in (asked, started()):
        assert told(now) == before, "who they are, and where, does not go by their numbers"
        for uuid in before:
            assert now("memory", uuid)["used_bytes"] >= 0


def test_every_device_says_what_it_is(bench: Bench, started: Ask) -> None:
    for info in started()("discover")["devices"]:
        assert info["vendor"]
        assert info["product_name"]
        assert info["model"]
        assert info["memory_total_bytes"] > GIB
        assert info["compute_milli"] == 1000


def test_memory_is_exact(bench: Bench, started: Ask, job: Callable[[], int]) -> None:
    asked = started()
    uuid, other = uuids(asked)
    before, elsewhere = asked("memory", uuid)["used_bytes"], asked("memory", other)
    pid = job()
    for size in (GIB, 3 * GIB + (64 << 20), GIB):
        try:
            bench.hold(0, size, pid)
        except Unheard as why:
            assert str(why)
            assert asked("memory", uuid)["used_bytes"] is None, "unknown is not nothing"
            assert sizes(asked, uuid) == {pid: None}
            return
        assert asked("memory", uuid)["used_bytes"] - before == size
    assert asked("memory", other) == elsewhere
    bench.release(0, pid)
    assert asked("memory", uuid)["used_bytes"] == before


def test_processes_are_exact_and_each_is_listed_once(bench: Bench, started: Ask, job: Callable[[], int]) -> None:
    asked = started()
    uuid, other = uuids(asked)
    first, second = job(), job()
    assert sizes(asked, uuid) == {}
    try:
        bench.hold(0, 2 * GIB, first)
        bench.hold(0, 3 * GIB, second)
    except Unheard as why:
        assert str(why)
        assert set(sizes(asked, uuid)) == {first}
        return
    assert sizes(asked, uuid) == {first: 2 * GIB, second: 3 * GIB}
    assert sizes(asked, other) == {}
    bench.release(0, first)
    assert sizes(asked, uuid) == {second: 3 * GIB}


def test_what_is_not_known_is_not_told_as_nothing(bench: Bench, started: Ask, job: Callable[[], int]) -> None:
    asked = started()
    uuid = uuids(asked)[0]
    pid = job()
    try:
        bench.hold(0, 2 * GIB, pid)
        bench.hide(0, pid)
    except Unheard as why:
        assert str(why)
        return
    try:
        told = sizes(asked, uuid)
    except Failed:
        return
    assert told[pid] is None


def test_a_device_that_is_lost_is_told_as_lost_and_the_others_answer(bench: Bench, started: Ask) -> None:
    asked = started()
    uuid, other = uuids(asked)
    bench.lose(0)
    with pytest.raises(Failed, match="DeviceLost"):
        asked("memory", uuid)
    assert asked("memory", other)["used_bytes"] >= 0
    found = asked("discover")
    assert [info["uuid"] for info in found["devices"]] == [other]


def test_a_device_that_returns_is_who_it_was(bench: Bench, started: Ask) -> None:
    asked = started()
    before = uuids(asked)
    bench.lose(0)
    asked("discover")
    bench.give_back(0)
    assert uuids(asked) == before
    assert asked("memory", before[0])["used_bytes"] >= 0


def test_parts_that_appear_under_a_running_agent_are_new_and_the_whole_is_gone(bench: Bench, started: Ask) -> None:
    asked = started()
    uuid, other = uuids(asked)
    try:
        bench.cut(0)
    except Unheard as why:
        assert str(why)
        return
    now = asked("discover")["devices"]
    assert uuid not in {info["uuid"] for info in now}
    assert other in {info["uuid"] for info in now}
    parts = [info for info in now if info["uuid"] != other]
    assert {info["parent_uuid"] for info in parts} <= {uuid}
    assert len({info["uuid"] for info in parts}) == len(parts)
    with pytest.raises(Failed):
        asked("memory", uuid)
    assert asked("memory", other)["used_bytes"] >= 0


def test_a_broken_library_is_an_answer(bench: Bench, tmp_path: Path) -> None:
    folder = tmp_path / "broken"
    folder.mkdir()
    asked = Asked(bench.spec, {**bench.environment, **bench.breakage(folder)})
    try:
        with pytest.raises(Failed, match="BackendUnavailable"):
            asked("open")
    finally:
        asked.close()


def test_programs_are_shown_devices_by_the_vendors_variables_alone(bench: Bench, started: Ask) -> None:
    asked = started()
    first, second = uuids(asked)
    one, both = asked("visibility", uuids=[second]), asked("visibility", uuids=[first, second])
    assert set(one) == set(both) == bench.variables()
    name = next(iter(sorted(name for name in one if "VISIBLE" in name or "AFFINITY" in name)))
    assert one[name] in both[name].split(",")
    assert len(both[name].split(",")) == 2


def test_what_a_device_says_of_itself_is_in_range_or_not_known(bench: Bench, started: Ask) -> None:
    asked = started()
    for uuid in uuids(asked):
        load, health = asked("load", uuid), asked("health", uuid)
        for name in ("gpu_percent", "memory_percent", "activity_percent"):
            assert load[name] is None or 0 <= load[name] <= 100
        assert load["temperature_c"] is None or 0 < load["temperature_c"] < 120
        assert not health["remap_failed"]
        assert not health["uncorrected_errors"]
