"""A kubelet and a container runtime, as far as a device plugin can tell: real gRPC over Unix sockets, real cgroups,
real processes in them. What it does wrong on purpose is named in its fields.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import subprocess
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc

from aliquot.kube.core.claims import DRIVER
from aliquot.kube.node.channels import unix_channel
from aliquot.kube.node.core.cgroup_names import pod_cgroups
from aliquot.kube.node.core.resources import PERCENT_RESOURCE
from aliquot.kube.node.protos import deviceplugin_pb2 as pb
from aliquot.kube.node.protos import deviceplugin_pb2_grpc as rpc
from aliquot.kube.node.protos import dra_pb2 as dra_pb
from aliquot.kube.node.protos import dra_pb2_grpc as dra_rpc
from aliquot.kube.node.protos import pluginregistration_pb2 as registration_pb
from aliquot.kube.node.protos import pluginregistration_pb2_grpc as registration_rpc
from aliquot.kube.node.protos import podresources_pb2 as resources_pb
from aliquot.kube.node.protos import podresources_pb2_grpc as resources_rpc
from tests.agent.foreign_cgroups import hierarchy, run_in
from tests.kube_node import cdi
from tests.kube_node import containers as real

LIST_BYTES_MAX = 4 << 20
BURST, WINDOW_S = 10, 1.0
"""So many questions about pods are answered in a second."""


class StartRefused(Exception):
    """The plugin did not let a container start."""


@dataclass
class Running:
    """A container."""

    id: str
    cgroup: Path
    process: subprocess.Popen[bytes]


@dataclass
class AdmittedPod:
    """A pod that has its units."""

    namespace: str
    name: str
    uid: str
    cgroup: Path
    units: dict[str, list[str]] = field(default_factory=dict)
    """By container."""
    answers: dict[str, pb.ContainerAllocateResponse] = field(default_factory=dict)
    running: list[Running] = field(default_factory=list)
    resource: str = PERCENT_RESOURCE
    first: set[str] = field(default_factory=set)
    """Containers that only run first: they are not listed."""


@dataclass
class Kubelet(rpc.RegistrationServicer, resources_rpc.PodResourcesListerServicer):
    """`systemd`: of its two cgroup drivers. `drops_cdi`: the runtime is too old."""

    folder: Path
    root: str
    systemd: bool = False
    drops_cdi: bool = False
    cdi_version: str = "0.5.0"
    """The newest that its runtime knows: containerd 1.7's first releases know no later one."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What containers have beside what the plugin gives them."""
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    """Health by unit, by resource."""
    pods: dict[str, AdmittedPod] = field(default_factory=dict)
    driver: Path = Path()
    used_up: int = 0
    """So many questions are refused, since others on the node have asked too often."""
    others: int = 0
    """So many pods with devices of other plugins are listed beside."""
    registrations: int = 0
    asked: int = 0
    refused: int = 0
    containers: list[real.Container] = field(default_factory=list)
    _server: grpc.aio.Server | None = None
    _plugins: dict[str, grpc.aio.Channel] = field(default_factory=dict)
    _following: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _times: deque[float] = field(default_factory=deque)
    _ids: Any = field(default_factory=itertools.count)
    _resources: grpc.aio.Server | None = None

    @property
    def plugins(self) -> Path:
        return self.folder / "device-plugins"

    @property
    def pod_resources(self) -> Path:
        return self.folder / "pod-resources" / "kubelet.sock"

    @property
    def registry(self) -> Path:
        return self.folder / "plugins_registry"

    @property
    def cdi(self) -> Path:
        return self.folder / "cdi"

    @property
    def allocatable(self) -> int:
        """Hundredths."""
        return len(self.free_or_not(PERCENT_RESOURCE))

    def free_or_not(self, resource: str) -> list[str]:
        return [unit for unit, health in self.devices.get(resource, {}).items() if health == "Healthy"]

    async def start(self) -> None:
        """A kubelet that starts removes whatever sockets there are."""
        for path in (self.plugins, self.pod_resources.parent, self.cdi):
            path.mkdir(parents=True, exist_ok=True)
        for path in (*self.plugins.glob("*.sock"), self.pod_resources):
            path.unlink(missing_ok=True)
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.plugins / 'kubelet.sock'}")
        await self._server.start()
        self._resources = grpc.aio.server()
        resources_rpc.add_PodResourcesListerServicer_to_server(self, self._resources)
        self._resources.add_insecure_port(f"unix:{self.pod_resources}")
        await self._resources.start()

    async def stop(self) -> None:
        for task in self._following.values():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        for channel in self._plugins.values():
            await channel.close()
        self._following, self._plugins = {}, {}
        for server in (self._server, self._resources):
            if server is not None:
                await server.stop(None)
        self._server = self._resources = None
        self.devices = {}

    async def restart(self) -> None:
        """Pods and what they were given are remembered; plugins are not."""
        await self.stop()
        await self.start()

    def kill_all(self) -> None:
        for container in self.containers:
            container.end()
        if self.containers:
            for top in {"/" + name.split("/")[1] for name in pod_cgroups("of-none", self.root)}:
                real.remove_cgroups(top)
        for pod in self.pods.values():
            for each in pod.running:
                _end(each.process)

    # calls of plugins

    async def Register(  # noqa: N802
        self, request: pb.RegisterRequest, context: grpc.aio.ServicerContext[pb.RegisterRequest, pb.Empty]
    ) -> pb.Empty:
        resource = request.resource_name
        if request.version != "v1beta1" or resource != PERCENT_RESOURCE:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "unsupported")
        self.registrations += 1
        if resource in self._following:
            self._following[resource].cancel()
        self._following[resource] = asyncio.create_task(self._follow(resource, self.plugins / request.endpoint))
        return pb.Empty()

    async def List(  # noqa: N802
        self,
        request: resources_pb.ListPodResourcesRequest,
        context: grpc.aio.ServicerContext[resources_pb.ListPodResourcesRequest, resources_pb.ListPodResourcesResponse],
    ) -> resources_pb.ListPodResourcesResponse:
        now = time.monotonic()
        self._times.append(now)
        while self._times[0] < now - WINDOW_S:
            self._times.popleft()
        if len(self._times) > BURST or self.used_up:
            self.used_up = max(0, self.used_up - 1)
            self.refused += 1
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        self.asked += 1
        answer = resources_pb.ListPodResourcesResponse()
        for pod in self.pods.values():
            listed = answer.pod_resources.add(name=pod.name, namespace=pod.namespace)
            for name, units in pod.units.items():
                if name not in pod.first:
                    listed.containers.add(name=name).devices.add(resource_name=pod.resource, device_ids=units)
        for number in range(self.others):
            others = answer.pod_resources.add(name=f"other-{number}", namespace="default").containers.add(name="main")
            others.devices.add(resource_name="other.example/device", device_ids=[f"device-of-another-{number:032d}"])
        return answer

    async def _follow(self, resource: str, socket: Path) -> None:
        options = (("grpc.max_receive_message_length", LIST_BYTES_MAX), ("grpc.use_local_subchannel_pool", 1))
        self._plugins[resource] = channel = grpc.aio.insecure_channel(f"unix:{socket}", options=options)
        stub: Any = rpc.DevicePluginStub(channel)
        assert (await stub.GetDevicePluginOptions(pb.Empty())).pre_start_required
        try:
            async for answer in stub.ListAndWatch(pb.Empty()):
                self.devices[resource] = {device.ID: device.health for device in answer.devices}
        except grpc.aio.AioRpcError:
            pass
        # A plugin that has gone: all that it had counts as unhealthy.
        self.devices[resource] = dict.fromkeys(self.devices.get(resource, {}), "Unhealthy")

    # pods

    async def admit(
        self,
        name: str,
        uid: str,
        containers: Mapping[str, int],
        *,
        first: frozenset[str] = frozenset(),
        resource: str = PERCENT_RESOURCE,
    ) -> AdmittedPod:
        """Give a pod its units and its cgroup. What containers that run first have goes to those after them."""
        taken = {unit for pod in self.pods.values() for units in pod.units.values() for unit in units}
        free = [unit for unit in self.free_or_not(resource) if unit not in taken]
        pod = AdmittedPod("default", name, uid, self._cgroup(uid), resource=resource, first=set(first))
        kept: list[str] = []
        stub: Any = rpc.DevicePluginStub(self._plugins[resource])
        for container, count in containers.items():
            new = max(0, count - len(kept))
            assert len(free) >= new, f"pod {name} does not fit: {len(free)} units are free"
            units = [*kept[:count], *free[:new]]
            free = free[new:]
            if container in first:
                kept = list(dict.fromkeys([*units, *kept]))
            else:
                kept = []
            pod.units[container] = units
            request = pb.AllocateRequest(container_requests=[pb.ContainerAllocateRequest(devices_ids=units)])
            pod.answers[container] = (await stub.Allocate(request)).container_responses[0]
        pod.cgroup.mkdir(parents=True)
        self.pods[uid] = pod
        return pod

    async def run(self, pod: AdmittedPod, container: str, command: list[str], **variables: str) -> Running:
        """Start a container's process, in its cgroup. Raises `StartRefused` with what the plugin said."""
        answer = await self._may_start(pod, container)
        container_id, cgroup = self._container_cgroup(pod)
        cgroup.mkdir()
        environment = {**self.environment, **dict(answer.envs), **variables, **self._described(answer)}
        # The container's own file system, in which a folder of the node is mounted.
        for mount in answer.mounts:
            host = await asyncio.to_thread(os.path.realpath, mount.host_path)
            environment = {key: text.replace(mount.container_path, host) for key, text in environment.items()}
        started = Running(container_id, cgroup, run_in(cgroup, command, environment))
        pod.running.append(started)
        return started

    async def run_container(
        self,
        pod: AdmittedPod,
        container: str,
        command: list[str],
        *,
        writable: Sequence[Path],
        own_pids: bool = False,
        **variables: str,
    ) -> real.Container:
        """Start a real container, by a real runtime. Raises `StartRefused` with what the plugin said."""
        answer = await self._may_start(pod, container)
        container_id, cgroup = self._container_cgroup(pod)
        mounts = [{"hostPath": each.host_path, "containerPath": each.container_path} for each in answer.mounts]
        own: dict[str, Any] = {"env": [f"{key}={text}" for key, text in answer.envs.items()], "mounts": mounts}
        environment = {**self.environment, **variables}
        path = "/" + str(cgroup.relative_to(hierarchy()))
        edits = [own, *self.edits(answer)]
        made = await real.started(
            self.folder / "run", container_id, path, command, environment, edits, writable=writable, own_pids=own_pids
        )
        self.containers.append(made)
        return made

    async def _may_start(self, pod: AdmittedPod, container: str) -> pb.ContainerAllocateResponse:
        """What the plugin gives a container, once it lets it start."""
        answer = pb.ContainerAllocateResponse()
        if container in pod.units:
            stub: Any = rpc.DevicePluginStub(self._plugins[pod.resource])
            try:
                await stub.PreStartContainer(pb.PreStartContainerRequest(devices_ids=pod.units[container]), timeout=30)
            except grpc.aio.AioRpcError as error:
                raise StartRefused(error.details()) from error
            answer = pod.answers[container]
        elif container in pod.answers:
            answer = pod.answers[container]  # of a claim
        return answer

    def _container_cgroup(self, pod: AdmittedPod) -> tuple[str, Path]:
        container_id = f"{next(self._ids):064x}"
        return container_id, pod.cgroup / (f"cri-containerd-{container_id}.scope" if self.systemd else container_id)

    # drivers of claims

    async def register_driver(self) -> None:
        """As its plugin watcher does with a socket that appears. Raises `grpc.aio.AioRpcError`."""
        socket = self.registry / f"{DRIVER}-reg.sock"
        async with unix_channel(socket) as channel:
            stub = registration_rpc.RegistrationStub(channel)
            info = await stub.GetInfo(registration_pb.InfoRequest(), timeout=5)
            assert (info.type, info.name) == ("DRAPlugin", DRIVER)
            assert "v1.DRAPlugin" in info.supported_versions
            self.driver = Path(info.endpoint)
            await stub.NotifyRegistrationStatus(registration_pb.RegistrationStatus(plugin_registered=True))

    async def admit_claim(self, name: str, uid: str) -> AdmittedPod:
        """A pod that has its cgroup; its claims are prepared when it starts."""
        pod = AdmittedPod("default", name, uid, self._cgroup(uid))
        pod.cgroup.mkdir(parents=True)
        self.pods[uid] = pod
        return pod

    async def prepare_claim(self, claim: dra_pb.Claim) -> list[str]:
        """Ids of CDI devices. Raises `StartRefused` with what the driver said."""
        async with unix_channel(self.driver) as channel:
            stub = dra_rpc.DRAPluginStub(channel)
            request = dra_pb.NodePrepareResourcesRequest(claims=[claim])
            answer = (await stub.NodePrepareResources(request, timeout=45)).claims[claim.uid]
        if answer.error:
            raise StartRefused(answer.error)
        return [cdi for device in answer.devices for cdi in device.cdi_device_ids]

    async def unprepare_claim(self, claim: dra_pb.Claim) -> None:
        async with unix_channel(self.driver) as channel:
            stub = dra_rpc.DRAPluginStub(channel)
            request = dra_pb.NodeUnprepareResourcesRequest(claims=[claim])
            answer = (await stub.NodeUnprepareResources(request, timeout=45)).claims[claim.uid]
        assert not answer.error, answer.error

    def remove(self, pod: AdmittedPod) -> None:
        """End what is left of a pod."""
        for each in pod.running:
            _end(each.process)
            with contextlib.suppress(FileNotFoundError):
                each.cgroup.rmdir()
        with contextlib.suppress(FileNotFoundError):
            pod.cgroup.rmdir()
        self.pods.pop(pod.uid, None)

    def _cgroup(self, uid: str) -> Path:
        burstable = [name for name in pod_cgroups(uid, self.root) if "burstable" in name]
        name = next(each for each in burstable if each.endswith(".slice") == self.systemd)
        return hierarchy() / name.lstrip("/")

    def _described(self, answer: pb.ContainerAllocateResponse) -> dict[str, str]:
        """What descriptions in the CDI folder add to the environment."""
        config: dict[str, Any] = {"process": {}, "mounts": [], "linux": {}}
        cdi.apply(self.edits(answer), config)
        return dict(pair.split("=", 1) for pair in config["process"].get("env", []))

    def edits(self, answer: pb.ContainerAllocateResponse) -> list[dict[str, Any]]:
        """What descriptions in the CDI folder change in a container."""
        devices = [] if self.drops_cdi else [device.name for device in answer.cdi_devices]
        return cdi.edits_for(self.cdi, devices, newest=self.cdi_version)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


async def listening(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    """For fixtures."""
    await kubelet.start()
    try:
        yield kubelet
    finally:
        kubelet.kill_all()
        await kubelet.stop()


def own_environment() -> dict[str, str]:
    return {key: text for key, text in os.environ.items() if not key.startswith("ALIQUOT_")}
