"""A night on call: faults are put into a running pool, alerts ring in Prometheus, and who is woken follows the page.

What stands there is what is typed here.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from aliquot.cli.main import main
from aliquot.client import Device, Lease, MemberPlace, Pool, SliceState, WaitUntil
from aliquot.client.admin import Budget, Declarations, TenantSpec
from aliquot.client.health import Standing
from aliquot.simgpu import Scenario
from tests.client.real_pool import real_pool
from tests.monitoring.programs import program, prometheus
from tests.monitoring.site import QUICK, Site, targets
from tests.polling import eventually
from tools.monitoring.__main__ import FOLDER
from tools.monitoring.rules import alerts

PAGE = (FOLDER.parents[1] / "docs" / "operations.md").read_text("utf-8")
GIB = 1 << 30
TAKES_PART = {"kubectl", "systemctl", "journalctl", "df", "timedatectl", "chronyc"}
"""Programs of the machine, which a test can't have; what they would do, it does itself."""


def commands(section: str) -> list[str]:
    """The lines to type in a section of the page."""
    part = re.split(r"^##", PAGE.split(f"\n### {section}\n", 1)[1], maxsplit=1, flags=re.MULTILINE)[0]
    return [line.strip() for line in part.splitlines() if line.startswith("    ")]


@pytest.fixture(scope="module")
def night(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Two nodes; alerts ring at once, instead of after minutes."""
    program("prometheus")
    folder: Path = tmp_path_factory.mktemp("night")
    rules = yaml.safe_load((FOLDER / "rules.yaml").read_text("utf-8"))
    for rule in (rule for group in rules["groups"] for rule in group["rules"]):
        rule.pop("for", None)
    for group in rules["groups"]:
        group["interval"] = "1s"
    (folder / "rules.yaml").write_text(yaml.safe_dump(rules))
    with (
        real_pool(nodes=2, gpus=2, settings=QUICK) as local,
        prometheus(folder, targets(local), folder / "rules.yaml") as server,
        local.connect() as pool,
    ):
        # What rises is seen to rise only from a first look at it.
        eventually(lambda: len(server.series('aliquot_device_xids_total{severity="fatal"}')) == 4)
        yield Site(local, pool, server)


class Woken:
    """Somebody with the page, a terminal, and what the alert says."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        monkeypatch.setenv("ALIQUOT_COORDINATOR", site.local.address)
        monkeypatch.setenv("ALIQUOT_TOKEN_FILE", str(site.local.token_file))
        monkeypatch.setenv("COLUMNS", "200")
        for name in ("ALIQUOT_TOKEN", "ALIQUOT_CONFIG", "ALIQUOT_TENANT"):
            monkeypatch.delenv(name, raising=False)

    def rings(self, alert: str) -> dict[str, str]:
        """Wait until it does; its labels."""
        return eventually(lambda: self._ringing(alert))

    def is_quiet(self, alert: str) -> None:
        """Wait until it rings no more."""
        eventually(lambda: not self._ringing(alert))

    def _ringing(self, alert: str) -> dict[str, str]:
        found = self.site.prometheus.series(f'ALERTS{{alertname="{alert}", alertstate="firing"}}')
        return found[0][0] if found else {}

    def types(self, line: str, labels: dict[str, str], lease: str = "") -> str:
        """One line of the page; what it shows. It must end well."""
        incidents = self.site.pool.admin.health().open
        filled = {
            "NODE": labels.get("node", "node-1"),
            "UUID": labels.get("uuid", ""),
            "LEASE": lease,
            "12": str(incidents[0].number) if incidents else "",
            "JOURNAL": f"sqlite:{self.site.local.layout.journal}",
            "http://prometheus:9090": self.site.prometheus.url,
        }
        words = [filled.get(word, word) for word in shlex.split(line)]
        if words[0] in TAKES_PART:
            return ""
        assert words[0] == "aliquot", line
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(words[1:])
        # `why` also tells by its code that a request waits, `doctor` that there is a problem (here: no card); of nodes
        # nobody has ordered any here.
        none_ordered = words[1:3] == ["supply", "cancel"] and "there is no order" in err.getvalue()
        assert code == 0 or words[1] in {"why", "doctor"} or none_ordered, f"{line}: {err.getvalue()}"
        return out.getvalue()

    def follows(self, alert: str, labels: dict[str, str], lease: str = "") -> dict[str, str]:
        """All lines of its section: what each shows."""
        return {line: self.types(line, labels, lease) for line in commands(alert)}


@pytest.fixture
def woken(night: Site, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Woken:
    monkeypatch.chdir(tmp_path)
    return Woken(night, monkeypatch)


def _device(pool: Pool, uuid: str) -> Device:
    return next(device for node in pool.nodes() for device in node.devices if device.uuid == uuid)


def _whole_device(pool: Pool, uuid: str) -> Lease:
    node = next(node for node in pool.nodes() if uuid in [device.uuid for device in node.devices])
    return pool.grant_on("1", [MemberPlace(node.node_id, (uuid,))], until=WaitUntil.ACTIVE, detached=True, grace_s=1)


def test_too_hot(night: Site, woken: Woken) -> None:
    with night.scenario("node-1") as gpus:
        gpus.set(0, temperature_c=95)
        labels = woken.rings("GPUCriticalTemperature")
        assert labels["node"] == "node-1"
        lease = _whole_device(night.pool, labels["uuid"])
        take_out, look, give_back = commands("GPUCriticalTemperature")
        woken.types(take_out, labels)
        eventually(lambda: night.pool.get(lease.lease_id).slices[0].state is SliceState.GONE)
        assert "too hot" in woken.types(f"aliquot health {night.pool.admin.health().open[0].number}", labels)
        assert "by-hand" in woken.types(look, labels)
        gpus.set(0, temperature_c=50)
        woken.is_quiet("GPUCriticalTemperature")
        assert "in service" in woken.types(give_back, labels)
        assert not night.pool.admin.health().open


def test_a_fatal_error_of_a_card(night: Site, woken: Woken) -> None:
    with night.scenario("node-2") as gpus:
        gpus.raise_xid(1, 95)
        labels = woken.rings("AliquotXidFatal")
        assert (labels["node"], labels["index"]) == ("node-2", "1")
        eventually(lambda: night.pool.admin.health().open)
        shown = woken.follows("AliquotXidFatal", labels)
        assert "uncontained-memory" in shown["aliquot health"]
        woken.follows("AliquotDeviceUnwell", woken.rings("AliquotDeviceUnwell"))
        story = woken.follows("AliquotIncidentOld", labels)["aliquot health 12"]
        assert "95" in story
        # Nothing may repair it here, so it waits for a person, who has it tested.
        eventually(lambda: night.pool.admin.health().open[0].state in (Standing.SERVICE, Standing.DRAINED))
        gpus.reset(1)
        woken.follows("AliquotCardNeedsPerson", labels)
    # The card is left as it was found: who looks at full cards next would see the one that is being tested.
    eventually(lambda: _device(night.pool, labels["uuid"]).healthy)
    night.pool.admin.return_device(labels["uuid"])
    woken.is_quiet("GPUMemoryHigh")
    assert not night.pool.admin.health().open


def test_an_agent_that_is_gone(night: Site, woken: Woken) -> None:
    agent = night.local.node("node-1").agent
    agent.stop()
    woken.follows("AliquotTargetDown", woken.rings("AliquotTargetDown"))
    woken.rings("AliquotNodeSilent")
    assert "node-1" in woken.follows("AliquotNodeSilent", {"node": "node-1"})["aliquot nodes"]
    agent.start()  # what `systemctl restart aliquot-agent` does
    woken.is_quiet("AliquotNodeSilent")


def test_somebody_without_a_lease(night: Site, woken: Woken) -> None:
    with night.scenario("node-2") as gpus:  # node-1's agent has another address by now
        pid = gpus.add_foreign(0, 3 * GIB)
        labels = woken.rings("AliquotForeignMemory")
        shown = woken.follows("AliquotForeignMemory", labels)
        assert "3" in shown["aliquot nodes NODE"]
        gpus.remove_foreign(0, pid)
        woken.is_quiet("AliquotForeignMemory")


def _full(permille: int) -> Callable[[Scenario], object]:
    """Somebody outside any lease holds so much of the first card."""
    return lambda gpus: gpus.add_foreign(0, gpus.device(0).total_bytes * permille // 1000, pid=permille)


@pytest.mark.parametrize(
    ("alert", "wrong", "right"),
    [
        ("GPUHighTemperature", lambda gpus: gpus.set(0, temperature_c=85), lambda gpus: gpus.set(0, temperature_c=50)),
        ("GPUMemoryHigh", _full(930), lambda gpus: gpus.remove_foreign(0, 930)),
        ("GPUMemoryFull", _full(965), lambda gpus: gpus.remove_foreign(0, 965)),
    ],
    ids=["hot", "nearly full", "full"],
)
def test_a_card_that_is_hot_or_full(
    night: Site,
    woken: Woken,
    alert: str,
    wrong: Callable[[Scenario], object],
    right: Callable[[Scenario], object],
) -> None:
    with night.scenario("node-2") as gpus:
        wrong(gpus)
        labels = woken.rings(alert)
        assert (labels["node"], labels["index"]) == ("node-2", "0")
        shown = woken.follows(alert, labels)
        assert "node-2" in shown["aliquot nodes NODE"]
        right(gpus)


def test_too_many_cards_out_at_once(night: Site, woken: Woken) -> None:
    uuids = [device.uuid for node in night.pool.nodes() if node.name == "node-2" for device in node.devices]
    for uuid in uuids:
        night.pool.admin.quarantine_device(uuid, reason="the rack is wet")
    labels = woken.rings("AliquotManyCardsOut")
    assert "by-hand" in woken.follows("AliquotManyCardsOut", labels)["aliquot health"]
    for uuid in uuids:
        night.pool.admin.return_device(uuid)
    woken.is_quiet("AliquotManyCardsOut")


def test_a_pool_that_is_full_while_requests_wait(night: Site, woken: Woken) -> None:
    held = [night.pool.allocate("1", detached=True, until=WaitUntil.GRANTED) for _ in range(4)]
    waiting = night.pool.allocate("1", detached=True, until=WaitUntil.QUEUED)
    labels = woken.rings("AliquotPoolFull")
    shown = woken.follows("AliquotPoolFull", labels, waiting.lease_id)
    assert any(waiting.lease_id in text for text in shown.values())
    for lease in (waiting, *held):
        night.pool.release(lease.lease_id)
    woken.is_quiet("AliquotPoolFull")


def test_a_budget_that_is_used_up(night: Site, woken: Woken) -> None:
    """Somebody hears of it who has typed nothing; the page's commands then show whose it is."""
    budget = Budget("month", share_milli_ms=1)
    night.pool.admin.apply(Declarations(tenants=(TenantSpec("lab", budget=budget),)))
    lease = night.pool.allocate("0.1,1Gi", tenant="lab", detached=True, until=WaitUntil.GRANTED)
    labels = woken.rings("AliquotBudgetUsed")
    assert labels["tenant"] == "lab"
    assert "lab" in woken.follows("AliquotBudgetUsed", labels, lease.lease_id)["aliquot tenants"]
    night.pool.release(lease.lease_id, wait_gone=True)
    night.pool.admin.apply(Declarations(tenants=(TenantSpec("lab"),)))
    woken.is_quiet("AliquotBudgetUsed")


def test_whatever_the_page_says_to_type_can_be_typed(night: Site, woken: Woken) -> None:
    night.pool.admin.apply(Declarations(tenants=(TenantSpec("lab"),)))  # once one is declared, only declared ones ask
    lease = night.pool.allocate("0.1,1Gi", tenant="lab", detached=True)
    (node,) = (node for node in night.pool.nodes() if node.name == "node-1")
    uuid = node.devices[1].uuid
    night.pool.admin.quarantine_device(uuid, reason="to have an incident")
    first = PAGE.split("\n## A night on call\n", 1)[1].split("\n###", 1)[0]
    for line in re.findall(r"^    (.*)$", first, re.MULTILINE):
        woken.types(line, {"node": "node-1", "uuid": uuid}, lease.lease_id)
    for alert in alerts():
        assert commands(alert.name), alert.name
        for line in commands(alert.name):
            if " verify UUID" not in line:
                woken.types(line, {"node": "node-1", "uuid": uuid}, lease.lease_id)
            if " return UUID" in line:
                night.pool.admin.quarantine_device(uuid, reason="to have an incident")
    night.pool.release(lease.lease_id)
    night.pool.admin.return_device(uuid)
