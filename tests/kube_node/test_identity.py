"""Whose a container is, is never guessed: a kubelet gives out units in any order, and again as soon as it can, to many
pods that ask for the same. Each container finds what is its own lease's, or does not start.

Here the kubelet, the agent and the API server are played, in memory: what is tested is who is tied to whom, in
thousands of orders. The same with real parts is in `test_pods`.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aliquot.client import AttachRefused, Tier
from aliquot.client.local import CgroupAttachment, LocalSlice, LocalStatus
from aliquot.kube.node.agent import Agent
from aliquot.kube.node.binder import Binder, NotPrepared
from aliquot.kube.node.cgroups import PodCgroups
from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION, LEASE_ANNOTATION
from aliquot.kube.node.core.cgroup_names import pod_cgroups
from aliquot.kube.node.core.claimants import Claimants
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.injection import CdiInjection, Injection, MountInjection, place
from aliquot.kube.node.leaving import Leaving
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts
from aliquot.kube.node.pod_resources import PodResources
from aliquot.kube.node.records import Bound, Records
from aliquot.kube.node.reporting import Reporting
from tests.kube_node import cdi
from tests.kube_node.fake_cluster import FakeCluster

NODE = "node-1"
UNITS = 12
PER_POD = 3
GIB = 1 << 30


@dataclass
class PlayedAgent:
    """Holds leases' slices and the cgroups that were attached: to each member one."""

    folder: Path
    slices: dict[str, LocalSlice] = field(default_factory=dict)

    async def status(self) -> LocalStatus:
        await asyncio.sleep(0)
        return LocalStatus(tuple(self.slices.values()), (), ())

    async def attach(self, lease_id: str, member: int, cgroup: str, uid: int) -> CgroupAttachment:
        await asyncio.sleep(0)
        piece = self.slices.get(lease_id)
        if piece is None or piece.status != "ACTIVE":
            raise AttachRefused(f"lease {lease_id} is not here")
        if piece.cgroups not in ((), (cgroup,)):
            raise AttachRefused(f"lease {lease_id} has {piece.cgroups} already")
        self.slices[lease_id] = _with(piece, cgroups=(cgroup,))
        environment = {"ALIQUOT_SLICE_IDS": piece.slice_id, "CUDA_VISIBLE_DEVICES": piece.device_uuid}
        folder = self.folder / lease_id
        folder.mkdir(exist_ok=True)
        return CgroupAttachment(environment, (piece.slice_id,), (str(folder),), Tier.PRELOAD, ())


def _with(piece: LocalSlice, **changed: Any) -> LocalSlice:
    found = {name: getattr(piece, name) for name in piece.__slots__}
    return LocalSlice(**(found | changed))


@dataclass
class PlayedKubelet:
    """Gives out units by itself, and lists who has them: also of pods that have just ended, if it likes."""

    held: dict[str, tuple[str, list[str]]] = field(default_factory=dict)
    """Name and units, by uid."""
    ghosts: list[tuple[str, list[str]]] = field(default_factory=list)

    async def held_since(self, moment_s: float) -> dict[tuple[str, str], frozenset[str]]:
        found: dict[tuple[str, str], frozenset[str]] = {}
        for name, units in [*self.ghosts, *self.held.values()]:
            found["default", name] = found.get(("default", name), frozenset()) | frozenset(units)
        return found

    def free(self) -> list[str]:
        taken = {unit for _, units in self.held.values() for unit in units}
        return [unit for unit in (f"percent-{n:05d}" for n in range(UNITS)) if unit not in taken]


class Node:
    """The node's part among them."""

    def __init__(self, mounts: bool) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="aliquot-identity-"))
        self.cgroup_root = self.folder / "cgroup"
        self.cgroup_root.mkdir()
        self.places = self.folder / "places"
        self.injection: Injection = MountInjection(self.places, "lib.so") if mounts else CdiInjection(self.places)
        self.agent = PlayedAgent(self.folder)
        self.kubelet = PlayedKubelet()
        self.cluster = FakeCluster()
        self.start()

    def start(self) -> None:
        """What it has on disk it knows again; what it has seen in order it does not."""
        self.records = Records(self.folder / "bound")
        self.reporting = Reporting(self.cluster)
        parts = NodeParts(
            node=NODE,
            pool_names=(NODE,),
            agent=cast(Agent, self.agent),
            resources=cast(PodResources, self.kubelet),
            cluster=self.cluster,
            cgroups=PodCgroups(self.cgroup_root),
            injection=self.injection,
            records=self.records,
            reporting=self.reporting,
            monotonic_s=lambda: 0.0,
        )
        self.binder = Binder(parts, prepare_s=0.0)
        self.leaving = Leaving(parts, None)

    def found_by(self, units: list[str]) -> str:
        """The lease whose things a container with these units finds in the place that it was promised."""
        promise = self.injection.promise(units)
        if isinstance(self.injection, MountInjection):
            return Path(promise.mounts[0].host_path).resolve(strict=True).name
        (edits,) = cdi.edits_for(self.places, [promise.cdi_devices[0].name])
        variables = dict(pair.split("=", 1) for pair in edits["env"])
        piece = next(p for p in self.agent.slices.values() if p.slice_id == variables["ALIQUOT_SLICE_IDS"])
        assert variables["CUDA_VISIBLE_DEVICES"] == piece.device_uuid
        return piece.lease_id


def assigned(piece: LocalSlice) -> dict[str, str]:
    part = {"device": piece.device_uuid, "share_milli": piece.share_milli, "memory_bytes": piece.memory_bytes}
    said = {"lease": piece.lease_id, "member": 0, "node": NODE, "slices": [part]}
    return {LEASE_ANNOTATION: piece.lease_id, ASSIGNMENT_ANNOTATION: json.dumps(said)}


class Identity(RuleBasedStateMachine):
    """Pods by uid. What is asked for is always the same, so nothing but identity tells one from another."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.leases = self.pods = 0
        self.owner: dict[str, str] = {}
        """Lease by uid, as the pool granted it."""
        self.started: set[str] = set()
        self.cheats: set[str] = set()

    @initialize(mounts=st.booleans())
    def begin(self, mounts: bool) -> None:
        self.node = Node(mounts)

    def teardown(self) -> None:
        self.runner.close()
        if hasattr(self, "node"):
            shutil.rmtree(self.node.folder)

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def _tell(self) -> None:
        """The node's watch has come as far as the API server."""
        self.node.binder.seen(dict(self.node.cluster.pods))

    def _bind(self, name: str, annotations: dict[str, str], pick: Any) -> str:
        self.pods += 1
        uid = str(uuid.UUID(int=self.pods))
        self.run(self.node.cluster.put(Pod(PodIdentity("default", name, uid), NODE, annotations)))
        units = pick.draw(st.permutations(self.node.kubelet.free()))[:PER_POD]
        self.node.kubelet.held[uid] = (name, list(units))
        (self.node.cgroup_root / pod_cgroups(uid)[0].lstrip("/")).mkdir(parents=True)
        return uid

    @precondition(lambda self: len(self.node.kubelet.free()) >= PER_POD)
    @rule(pick=st.data(), name=st.sampled_from(["a", "b", "c", "d", "e"]), told=st.booleans())
    def a_pod_is_placed(self, pick: Any, name: str, told: bool) -> None:
        if any(pod.identity.name == name for pod in self.node.cluster.pods.values()):
            return
        self.leases += 1
        lease_id = f"l-{self.leases}"
        piece = LocalSlice(
            f"{lease_id}.1.0", lease_id, "t", f"GPU-{self.leases % 2}", 250, 4 * GIB, None, (), Tier.PRELOAD, "ACTIVE"
        )
        self.node.agent.slices[lease_id] = piece
        uid = self._bind(name, assigned(piece), pick)
        self.owner[uid] = lease_id
        if told:
            self._tell()

    @precondition(lambda self: self.owner and len(self.node.kubelet.free()) >= PER_POD)
    @rule(pick=st.data(), told=st.booleans())
    def somebody_copies_an_assignment(self, pick: Any, told: bool) -> None:
        """The policy that forbids it has been deleted. Who copies has read, so the original was there before."""
        lease_id = pick.draw(st.sampled_from(sorted(self.owner.values())))
        if lease_id not in self.node.agent.slices or any(
            pod.identity.name == f"cheat-{lease_id}" for pod in self.node.cluster.pods.values()
        ):
            return
        self.cheats.add(self._bind(f"cheat-{lease_id}", assigned(self.node.agent.slices[lease_id]), pick))
        if told:
            self._tell()

    @rule()
    def the_watch_comes_along(self) -> None:
        self._tell()

    @precondition(lambda self: self.node.kubelet.held)
    @rule(pick=st.data(), told=st.booleans())
    def containers_start(self, pick: Any, told: bool) -> None:
        """Some at once, in any order."""
        if told:
            self._tell()
        uids = pick.draw(st.lists(st.sampled_from(sorted(self.node.kubelet.held)), unique=True, min_size=1))

        async def start(uid: str) -> None:
            units = self.node.kubelet.held[uid][1]
            try:
                await self.node.binder.prepare(list(reversed(units)))
            except NotPrepared:
                return
            found = self.node.found_by(units)
            if uid in self.owner:
                assert found == self.owner[uid], "a container found another's"
                self.started.add(uid)
            else:
                # Of a pod that has gone, while its lease is about to end, there is no witness.
                assert found not in self.owner.values(), "a copy was believed"

        async def all_of_them() -> None:
            await asyncio.gather(*map(start, uids))

        self.run(all_of_them())

    @precondition(lambda self: self.node.kubelet.held)
    @rule(pick=st.data(), listed=st.booleans(), released=st.booleans())
    def a_pod_goes(self, pick: Any, listed: bool, released: bool) -> None:
        """Its units are free at once; the kubelet may list it on, and its lease may end later."""
        uid = pick.draw(st.sampled_from(sorted(self.node.kubelet.held)))
        name, units = self.node.kubelet.held.pop(uid)
        if listed:
            self.node.kubelet.ghosts.append((name, units))
        if uid in self.node.cluster.pods:
            self.run(self.node.cluster.delete(uid))
        shutil.rmtree(self.node.cgroup_root / pod_cgroups(uid)[0].lstrip("/"))
        lease_id = self.owner.pop(uid, None)
        self.cheats.discard(uid)
        self.started.discard(uid)
        if lease_id is not None and released:
            self.node.agent.slices.pop(lease_id)

    @rule()
    def the_kubelet_forgets_ghosts(self) -> None:
        self.node.kubelet.ghosts.clear()

    @rule()
    def what_has_gone_is_cleared_away(self) -> None:
        self._tell()

        async def look() -> None:
            status = await self.node.agent.status()
            await self.node.binder.reconcile(self.node.reporting.pods)
            await self.node.leaving.look(self.node.reporting.pods, status)

        for lease_id in self.node.agent.slices.keys() - set(self.owner.values()):
            self.node.agent.slices.pop(lease_id)
        self.run(look())

    @rule()
    def the_nodes_part_restarts(self) -> None:
        self.node.start()

    @invariant()
    def nobody_has_anothers(self) -> None:
        if not hasattr(self, "node"):
            return
        for piece in self.node.agent.slices.values():
            for cgroup in piece.cgroups:
                owners = [uid for uid, lease_id in self.owner.items() if lease_id == piece.lease_id]
                assert not owners or cgroup == pod_cgroups(owners[0])[0], f"{cgroup} has {piece.lease_id}"
        for uid in self.started & self.node.kubelet.held.keys():
            # Its containers may be made at any moment: what was put there must still be there.
            assert self.node.found_by(self.node.kubelet.held[uid][1]) == self.owner[uid]


TestIdentity = Identity.TestCase
TestIdentity.settings = settings(max_examples=60, stateful_step_count=25)


async def test_what_one_pod_leaves_is_not_taken_from_the_next() -> None:
    """Units are given out again before everything of their last pod is cleared away."""
    node = Node(mounts=False)
    try:
        attached = CgroupAttachment({"ALIQUOT_SLICE_IDS": "l-2.1.0"}, ("l-2.1.0",), (), Tier.NONE, ())
        where = place(["u-1"])
        for uid, lease_id in (("old", "l-1"), ("new", "l-2")):
            node.records.put(Bound("default", "web-0", uid, lease_id, 0, f"/pod-{uid}", (where,)))
        node.injection.fulfil(["u-1"], attached)
        new = Pod(PodIdentity("default", "web-0", "new"), NODE)
        await node.leaving.look({"new": new}, LocalStatus((), (), ()))
        assert [each.uid for each in node.records.all()] == ["new"], "the old one is over"
        assert list(node.places.glob("*.json")), "the new one's container is about to be made"
        await node.leaving.look({}, LocalStatus((), (), ()))
        assert not list(node.places.glob("*.json"))
    finally:
        shutil.rmtree(node.folder)


def test_who_was_seen_first_has_it() -> None:
    claims, member = Claimants(), ("l-1", 0)
    claims.look([("a", member)])
    claims.look([("a", member), ("b", member)])
    assert claims.others("a", member) == []
    assert claims.others("b", member) == ["a"]
    assert not claims.seen("c", member)
    claims.look([("b", member)])
    assert claims.others("b", member) == [], "a has gone"
    unknown = Claimants()
    unknown.look([("a", member), ("b", member)])
    assert (unknown.others("a", member), unknown.others("b", member)) == (["b"], ["a"])
