"""Leadership by a Lease of Kubernetes, with the official client against a server of the API's part that Leases need. It
has not been run on a cluster.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from aliquot.common.errors import ConfigError
from aliquot.coordinator.errors import JournalUnavailable
from aliquot.coordinator.settings.config import Settings
from aliquot.coordinator.settings.stores import shared_leadership
from aliquot.coordinator.writing.journal.postgres import PostgresJournal
from tests.failover.audit import audit
from tests.failover.cluster import Cluster, Replica, cluster, granted_after, load
from tests.failover.leases_api import LeasesApi, leases_api
from tests.failover.test_takeover import declare

if TYPE_CHECKING:
    from aliquot.coordinator.writing.leadership.kubernetes import KubernetesLeadership

pytestmark = [
    pytest.mark.postgres,
    pytest.mark.timeout(180),
    pytest.mark.skipif(
        find_spec("kubernetes") is None, reason="needs the official client: pip install 'aliquot[kubernetes]'"
    ),
]

PLACE = "pools/aliquot"
EPOCH, ADDRESS = "aliquot.dev/leader-epoch", "aliquot.dev/address"
Make = Callable[[str], "KubernetesLeadership"]

NO_GRAMMARS = """raise ImportError("not needed here, and its import takes seconds of a processor")\n"""
"""`rfc3987_syntax`, which the official client brings in where its validation is installed."""


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeasesApi]:
    with leases_api() as server:
        monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path / "config")))
        (tmp_path / "site").mkdir()
        (tmp_path / "site" / "rfc3987_syntax.py").write_text(NO_GRAMMARS)
        paths = [str(tmp_path / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))  # of coordinators that are started
        yield server


@pytest.fixture
def make(api: LeasesApi, database: str) -> Iterator[Make]:
    from aliquot.coordinator.writing.leadership.kubernetes import KubernetesLeadership  # takes long to import

    made: list[KubernetesLeadership] = []

    def one(holder: str) -> KubernetesLeadership:
        journal = PostgresJournal(database)
        journal.prepare()
        leadership = KubernetesLeadership(journal, PLACE, holder=holder, address=f"{holder}:7070", expiry_ms=1000)
        made.append(leadership)
        return leadership

    yield one
    for leadership in made:
        leadership.release()


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.02)


def test_one_of_two_takes_it_and_names_itself(api: LeasesApi, make: Make) -> None:
    first, second = make("a"), make("b")
    seats = first.look(), second.look()
    assert [seat.free for seat in seats] == [True, True]
    assert first.take(seats[0]) == 1
    assert second.take(seats[1]) is None, "another was faster"
    seat = second.look()
    assert (seat.free, seat.address, seat.leader_epoch) == (False, "a:7070", 1)
    kept = api.leases[PLACE]
    assert kept["spec"]["holderIdentity"] == "a"
    assert kept["metadata"]["annotations"] == {EPOCH: "1", ADDRESS: "a:7070"}


def test_who_renews_keeps_it_and_who_gives_it_back_is_followed_at_once(api: LeasesApi, make: Make) -> None:
    first, second = make("a"), make("b")
    assert first.take(first.look())
    until(lambda: api.version > 104, "it is renewed")
    assert not second.look().free
    assert not first.lost
    api.touch(PLACE)
    version = api.version
    until(lambda: api.version > version + 2, "it is renewed although somebody edited it")
    first.stop_renewing()
    seat = second.look()
    assert seat.free
    assert second.take(seat) == 2
    assert api.leases[PLACE]["spec"]["leaseTransitions"] == 1


def test_who_no_longer_renews_is_replaced_and_knows_it_first(api: LeasesApi, make: Make) -> None:
    first, second = make("a"), make("b")
    assert first.take(first.look())
    first._stop.set()  # as if frozen
    assert not second.look().free
    until(lambda: second.look().free, "it is seen unchanged for its whole duration")
    assert first.lost
    assert second.take(second.look()) == 2


def test_an_api_that_is_silent_or_refuses_is_said_and_costs_the_lead(api: LeasesApi, make: Make) -> None:
    first = make("a")
    assert first.take(first.look())
    api.refuses = 403
    with pytest.raises(JournalUnavailable) as refusal:
        make("b").look()
    assert "role" in refusal.value.hint
    api.refuses = 0
    api.hangs = True
    with pytest.raises(JournalUnavailable):
        make("c").look()
    until(lambda: first.lost, "it could not be renewed")


def test_the_epoch_is_above_the_journals_whatever_the_lease_says(api: LeasesApi, make: Make, database: str) -> None:
    journal = PostgresJournal(database)
    journal.open()
    journal.raise_leader_epoch(41)
    journal.close()
    leadership = make("a")
    assert leadership.acquire() == 42
    assert api.leases[PLACE]["metadata"]["annotations"][EPOCH] == "42"


@pytest.mark.parametrize(
    ("journal", "leadership"),
    [
        ("memory:", f"kubernetes:{PLACE}"),
        ("postgres:dbname=x", "kubernetes:nowhere"),
        ("postgres:dbname=x", "zookeeper:x"),
    ],
)
def test_settings_that_make_no_sense_are_refused(api: LeasesApi, journal: str, leadership: str) -> None:
    del api
    with pytest.raises(ConfigError):
        shared_leadership(Settings(leadership=leadership, journal=journal), PostgresJournal("dbname=x"))


async def test_coordinators_take_over_by_it_and_nothing_is_lost(api: LeasesApi, database: str) -> None:
    async with cluster(database, 2, "--leadership", f"kubernetes:{PLACE}") as several:
        await declare(several)
        async with load(several.addresses, 4) as log:
            await granted_after(log, time.monotonic())
            for how in (signal.SIGKILL, signal.SIGTERM):
                old = leader_of(api, several)
                old.send(how)
                await asyncio.to_thread(until_another_leads, api, several, old)
                await granted_after(log, time.monotonic())
                await asyncio.to_thread(old.ended)
                old.start()
                await asyncio.to_thread(old.wait_until_ready)
        findings = await asyncio.to_thread(audit, several.conninfo, log)
        assert findings.clean, findings
        assert len(findings.epochs) >= 3


def until_another_leads(api: LeasesApi, several: Cluster, old: Replica) -> None:
    until(lambda: leader_of(api, several) is not old, "another leads")


def leader_of(api: LeasesApi, several: Cluster) -> Replica:
    address = api.leases[PLACE]["metadata"]["annotations"][ADDRESS]
    return next(replica for replica in several.replicas if replica.address == address)
