"""A node of a cluster: a kubelet, a real agent on simulated GPUs, and the node's part between them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import tempfile
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.kube.node.core.assignment import ASSIGNMENT_ANNOTATION, LEASE_ANNOTATION
from aliquot.kube.node.identity import PodIdentity
from aliquot.kube.node.objects import CONDITION, Pod
from aliquot.kube.node.service import NodeService
from aliquot.kube.node.settings import InjectionMode, Mode, Settings
from aliquot.v1 import agent_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.foreign_cgroups import hierarchy, subtree
from tests.agent.harness import GIB, Node, auntil, closing, desired, make_node
from tests.kube_node.fake_cluster import FakeCluster
from tests.kube_node.fake_kubelet import AdmittedPod, Kubelet, listening, own_environment

ACTIVE = agent_pb2.SLICE_STATUS_ACTIVE
NODE = "test-node"


@dataclass
class Place:
    """All of it. `leases` are the slices that the coordinator wants, by lease."""

    agent: Node
    coordinator: Coordinator
    kubelet: Kubelet
    cluster: FakeCluster
    settings: Settings
    leases: dict[str, agent_pb2.DesiredSlice] = field(default_factory=dict)
    released: list[str] = field(default_factory=list)
    service: NodeService | None = None
    _task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start the node's part; returns when the kubelet has its units."""
        before = self.kubelet.registrations
        self.service = await NodeService.open(self.settings, NODE, self.cluster, self.release)
        self._task = asyncio.create_task(self.service.run())
        if self.settings.mode is Mode.DRA:
            await auntil(self._announced, "it is announced")
            await self.kubelet.register_driver()
            await auntil(lambda: self.cluster.slice is not None, "its devices are published")
            return
        await auntil(lambda: self.kubelet.registrations > before and self.kubelet.allocatable > 0, "it has registered")

    def _announced(self) -> bool:
        claims = self.service.claims if self.service is not None else None
        return claims is not None and len(claims.plugin._servers) == 2

    async def stop(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def release(self, lease_id: str, pod_uid: str) -> None:
        """As the pool does: the agent is told to stop."""
        if lease_id not in self.released:
            self.released.append(lease_id)
        piece = self.leases.pop(lease_id, None)
        if piece is not None:
            self.coordinator.desire(desired_stop(piece))

    async def lease(
        self, lease_id: str, *, device: int = 0, memory_bytes: int = 4 * GIB, share_milli: int = 250
    ) -> None:
        """Have the agent hold a slice."""
        await self.leases_of({lease_id: (device, share_milli, memory_bytes)})

    async def leases_of(self, wanted: dict[str, tuple[int, int, int]]) -> None:
        for lease_id, (device, share_milli, memory_bytes) in wanted.items():
            self.leases[lease_id] = desired(
                self.agent.uuids[device],
                slice_id=f"{lease_id}.1.0",
                lease_id=lease_id,
                share_milli=share_milli,
                memory_bytes=memory_bytes,
                grace_ms=500,
            )
        self.coordinator.desire(*self.leases.values(), full=True)
        for lease_id in wanted:
            await self.coordinator.until_status(f"{lease_id}.1.0", ACTIVE)

    def annotations(self, lease_id: str) -> dict[str, str]:
        """As the placer writes them with the binding."""
        piece = self.leases[lease_id]
        held = {
            "device": piece.device_uuid,
            "share_milli": piece.share_milli,
            "memory_bytes": piece.memory_bytes,
            "tier": "preload",
        }
        assignment = {"lease": lease_id, "member": 0, "node": NODE, "slices": [held]}
        return {LEASE_ANNOTATION: lease_id, ASSIGNMENT_ANNOTATION: json.dumps(assignment)}

    async def bound(self, name: str, lease_id: str, *, units: int = 25) -> AdmittedPod:
        """A pod, placed, bound and admitted, with one container."""
        pod = Pod(PodIdentity("default", name, str(uuid.uuid4())), NODE, self.annotations(lease_id))
        await self.cluster.put(pod)
        return await self.kubelet.admit(name, pod.identity.uid, {"main": units})

    async def condition(self, pod: AdmittedPod, *, reason: str) -> str:
        """Wait for the pod's condition to have a reason; returns its status and message."""

        def said() -> tuple[str, str, str]:
            found = self.cluster.pods.get(pod.uid)
            return found.conditions.get(CONDITION, ("", "", "")) if found is not None else ("", "", "")

        await auntil(lambda: said()[1] == reason, f"the condition is {reason}, not {said()}\n{self.agent.log[-2000:]}")
        return f"{said()[0]}: {said()[2]}"

    def cgroups_of(self, lease_id: str) -> list[str]:
        return [each for piece in self.agent.status().slices if piece.lease_id == lease_id for each in piece.cgroups]

    def audit(self) -> None:
        """No pod without its lease, no lease with a cgroup that is no living pod's, none with two pods."""
        seen: dict[str, str] = {}
        for piece in self.agent.status().slices:
            assert len(piece.cgroups) <= 1, piece
            for cgroup in piece.cgroups:
                owner = next((p for p in self.kubelet.pods.values() if str(p.cgroup).endswith(cgroup)), None)
                assert owner is not None, f"ghost: {piece.lease_id} has {cgroup}"
                pod = self.cluster.pods[owner.uid]
                assert pod.annotations[LEASE_ANNOTATION] == piece.lease_id
                assert seen.setdefault(cgroup, piece.lease_id) == piece.lease_id


def desired_stop(piece: agent_pb2.DesiredSlice) -> agent_pb2.DesiredSlice:
    stop = agent_pb2.DesiredSlice()
    stop.CopyFrom(piece)
    stop.state = agent_pb2.DESIRED_STATE_STOP
    return stop


@pytest.fixture
async def place(request: pytest.FixtureRequest) -> AsyncIterator[Place]:
    """Parameters (`indirect`): the tiers, the way of injection, whether cgroups are systemd's."""
    tiers, injection, systemd, *rest = getattr(request, "param", ("preload,watchdog", "cdi", False))
    with contextlib.ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-kn-")))
        await asyncio.to_thread(directory.chmod, 0o755)
        top = stack.enter_context(subtree("aliquot-kubelet"))
        agent = make_node(directory / "node")
        await asyncio.to_thread(agent.directory.chmod, 0o755)
        agent.environment["ALIQUOT_AGENT_ENFORCEMENT_TIERS"] = tiers
        stack.enter_context(contextlib.contextmanager(closing)(agent))
        coordinator = await Coordinator().start()
        await asyncio.to_thread(agent.start, coordinator.address)
        await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot came")
        root = f"/{top.name}"
        kubelet = Kubelet(directory / "kubelet", root, systemd=systemd)
        kubelet.environment = {**own_environment(), **simgpu.environment(agent.scenario_path), "PYTHONPATH": ""}
        if systemd:
            nested = hierarchy() / f"{top.name.replace('-', '_')}.slice"
            stack.callback(lambda: _remove(nested))
        settings = Settings(
            node_name=NODE,
            agent_socket=agent.socket,
            state_dir=directory / "state",
            device_plugins=kubelet.plugins,
            pod_resources=kubelet.pod_resources,
            cgroup_root=hierarchy(),
            kubelet_cgroup_root=root,
            injection=InjectionMode(injection),
            cdi_dir=kubelet.cdi,
            mode=Mode(rest[0]) if rest else Mode.CLASSIC,
            plugins=kubelet.folder / "plugins",
            plugins_registry=kubelet.registry,
            interval_s=0.2,
        )
        found = Place(agent, coordinator, kubelet, FakeCluster(), settings)
        try:
            async for _ in listening(kubelet):
                await found.start()
                yield found
                await found.stop()
        finally:
            await found.stop()
            await coordinator.stop()


def _remove(top: Path) -> None:
    for directory in sorted(top.glob("**/"), reverse=True):
        with contextlib.suppress(OSError):
            (directory / "cgroup.kill").write_text("1")
        with contextlib.suppress(OSError):
            directory.rmdir()
