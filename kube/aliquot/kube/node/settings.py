"""The settings of the node's part."""

from __future__ import annotations

import enum
from pathlib import Path

import msgspec

ENV_PREFIX = "ALIQUOT_KUBE_NODE_"
TABLE = "kube_node"
LIBRARY = "libaliquot_preload.so"
"""What containers load where the tier `preload` holds their part."""


class InjectionMode(enum.Enum):
    """How containers get what their tier needs."""

    CDI = "cdi"
    MOUNTS = "mounts"


class Mode(enum.Enum):
    """How Kubernetes gives out this node's devices."""

    CLASSIC = "classic"
    """By extended resources, through our scheduler."""
    DRA = "dra"
    """By ResourceSlices and claims, through any kube-scheduler."""


class Settings(msgspec.Struct, frozen=True):
    """See docs/kubernetes-node.md."""

    node_name: str = ""
    """The Node's, as a pod has it from `spec.nodeName`. Empty: the host's name."""
    agent_socket: Path = Path("/run/aliquot/agent.sock")
    state_dir: Path = Path("/var/lib/aliquot/kube-node")
    mode: Mode = Mode.CLASSIC
    device_plugins: Path = Path("/var/lib/kubelet/device-plugins")
    plugins: Path = Path("/var/lib/kubelet/plugins")
    plugins_registry: Path = Path("/var/lib/kubelet/plugins_registry")
    """The kubelet's, for drivers of claims."""
    pod_resources: Path = Path("/var/lib/kubelet/pod-resources/kubelet.sock")
    cgroup_root: Path = Path("/sys/fs/cgroup")
    kubelet_cgroup_root: str = "/"
    """The kubelet's `cgroupRoot`, such as /kubelet in kind."""
    injection: InjectionMode = InjectionMode.CDI
    cdi_dir: Path = Path("/var/run/cdi")
    preload: bool = True
    """With `mounts`: containers load the library of the tier `preload`."""
    kubeconfig: str = ""
    """Empty: the pod's own cluster."""
    release: bool = False
    """Give back leases of pods that have gone, by the coordinator that the client's settings name."""
    interval_s: float = 2.0
    """How often all pods are compared with what the agent has, beside each change."""
    alive_file: str = ""
    """Touched every ten seconds while the process's loop turns, for a probe; empty: none."""
    log_level: str = "info"
    log_json: bool = False
