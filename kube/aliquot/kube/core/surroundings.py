"""What stands around us on each node, and whether it does what we need: kubelet, container runtime, kernel, driver.

What an API server can't tell is said to be not known, with where to look: it is never taken for good.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec

_SKEW: Final = 3
"""Minor versions that a kubelet may be behind its API server: Kubernetes' own rule since 1.28."""
CLAIMS_MINOR: Final = 36
"""From which on devices can be shared by claims."""
_CDI_MINOR: Final = 29
"""From which on kubelets hand on the CDI devices of plugins, unless they are told not to."""
_CDI_RUNTIMES: Final = {"containerd": (1, 7), "cri-o": (1, 26)}
_OLDEST_KERNEL: Final = (5, 4)
_DMEM_KERNEL: Final = (6, 14)
_LIMITING_DRIVER: Final = 615
_NAMES_TOLD: Final = 3
_MOUNTS: Final = "helm upgrade aliquot deploy/chart/aliquot --set node.injection=mounts"
_CONTAINERD_1: Final = (
    "on the node: containerd config dump | grep -E -A2 'enable_cdi|nri.v1'; where it is false, write enable_cdi = true "
    'under [plugins."io.containerd.grpc.v1.cri"] in /etc/containerd/config.toml and restart it'
)


class Mark(enum.StrEnum):
    """How bad it is."""

    GOOD = "good"
    NOTE = "note"
    BAD = "bad"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at; `mend` is a command or a file to change, where something is to be done."""

    mark: Mark
    subject: str
    text: str
    mend: str = ""


class Wants(msgspec.Struct):
    """What the settings of our part on the nodes say, by their names."""

    mode: str = "classic"
    injection: str = "cdi"
    kubelet_cgroup_root: str = "/"

    def gates(self, of: str) -> tuple[str, ...]:
        """What must not be switched off in the `server`, or in the `kubelet`."""
        claims = ("DynamicResourceAllocation", "DRAConsumableCapacity") if self.mode == "dra" else ()
        return (*claims, "DevicePluginCDIDevices") if of == "kubelet" and self.injection == "cdi" else claims


@dataclass(frozen=True, slots=True)
class Machine:
    """A node: what its Node says, its driver as the agent says, its kubelet's settings, or why they are not known."""

    name: str
    info: Mapping[str, str]
    labels: Mapping[str, str]
    driver: str
    kubelet: Mapping[str, Any] | str


def look_around(machines: Iterable[Machine], wants: Wants, server_minor: int, toolkit: str) -> Iterator[Finding]:
    """One finding for all nodes of which the same is to be said. `toolkit`: what installs NVIDIA's here."""
    found: dict[Finding, list[str]] = {}
    for machine in machines:
        for check in (
            _kubelet(machine.info.get("kubeletVersion", ""), wants, server_minor),
            _runtime(machine.info.get("containerRuntimeVersion", ""), wants),
            _kernel(machine.info.get("kernelVersion", "")),
            *_driver(machine, toolkit),
            _settings(machine.kubelet, wants),
        ):
            found.setdefault(check, []).append(machine.name)
    for finding, several in sorted(found.items(), key=lambda item: item[0].subject):
        more = f" and {len(several) - _NAMES_TOLD} more" if len(several) > _NAMES_TOLD else ""
        yield replace(finding, text=f"{finding.text} ({', '.join(several[:_NAMES_TOLD])}{more})")


def gates(metrics: str, wants: Wants) -> Iterator[Finding]:
    """What we need switched on, by an API server's metrics."""
    for gate in wants.gates("server"):
        found = re.search(rf'^kubernetes_feature_enabled\{{name="{gate}",.*\}} ([01])$', metrics, re.MULTILINE)
        if found is None:
            text = f"{gate} is not known: the API server's metrics don't tell it, or not to you; it is on by default"
            mend = f"kubectl get --raw /metrics | grep {gate}, as an administrator"
            yield Finding(Mark.NOTE, "feature gates", text, mend)
        elif found[1] == "0":
            mend = f"start kube-apiserver, kube-scheduler and the kubelets with --feature-gates={gate}=true"
            yield Finding(Mark.BAD, "feature gates", f"{gate} is switched off, and node.mode=dra needs it", mend)
        else:
            yield Finding(Mark.GOOD, "feature gates", f"{gate} is on")


def _version(text: str) -> tuple[int, int]:
    found = re.search(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _unknown(subject: str, why: str, look: str) -> Finding:
    return Finding(Mark.NOTE, subject, f"not known: {why}", look)


def _kubelet(text: str, wants: Wants, server_minor: int) -> Finding:
    minor, problem, mend = _version(text)[1], "", "upgrade the kubelet"
    if not minor:
        return _unknown("kubelet", "the Node does not say its version", "on the node: kubelet --version")
    if minor > server_minor:
        problem, mend = "newer than the API server, which Kubernetes does not support", "upgrade the control plane"
    elif minor < server_minor - _SKEW:
        problem = f"more than {_SKEW} versions behind the API server, which Kubernetes does not support"
    elif wants.mode == "dra" and minor < CLAIMS_MINOR:
        problem = f"node.mode=dra needs 1.{CLAIMS_MINOR}"
    elif wants.injection == "cdi" and minor < _CDI_MINOR:
        problem, mend = f"node.injection=cdi needs 1.{_CDI_MINOR}", f"upgrade the kubelet, or {_MOUNTS}"
    return Finding(Mark.BAD, "kubelet", f"{text}: {problem}", mend) if problem else Finding(Mark.GOOD, "kubelet", text)


def _runtime(text: str, wants: Wants) -> Finding:
    name, _, number = text.partition("://")
    told, version = f"{name} {number}", _version(number)
    if text and wants.injection != "cdi":
        return Finding(Mark.GOOD, "runtime", f"{told}, of which node.injection={wants.injection} needs nothing")
    if name not in _CDI_RUNTIMES or version == (0, 0):
        why = f"whether {text} gives containers their CDI devices" if text else "the Node does not say which it has"
        return _unknown("runtime", why, "do pods have the condition NotInjected? See docs/kubernetes-node.md")
    if version < _CDI_RUNTIMES[name]:
        mend = f"upgrade {name}" + ("" if wants.mode == "dra" else f", or {_MOUNTS}")
        return Finding(Mark.BAD, "runtime", f"{told} drops CDI devices without a word", mend)
    if name == "containerd" and version < (2, 0):
        text = f"{told} has CDI and NRI off unless its settings say otherwise, which is not known; NRI is not needed"
        return Finding(Mark.NOTE, "runtime", text, _CONTAINERD_1)
    on = "CDI and NRI" if name == "containerd" else "CDI"
    return Finding(Mark.GOOD, "runtime", f"{told} has {on} on unless its settings say otherwise; NRI is not needed")


def _kernel(text: str) -> Finding:
    version = _version(text)
    if version == (0, 0):
        return _unknown("kernel", "the Node does not say its version", "on the node: uname -r")
    if version < _OLDEST_KERNEL:
        return Finding(Mark.BAD, "kernel", f"{text}: processes can't be followed by pidfd", "upgrade to Linux 5.4")
    lacks = "" if version >= _DMEM_KERNEL else ": without dmem (6.14), by which AMD's and Intel's cards are limited"
    return Finding(Mark.GOOD, "kernel", f"{text}{lacks}")


def _driver(machine: Machine, toolkit: str) -> Iterator[Finding]:
    label = "nvidia.com/cuda.driver"
    parts = [machine.labels.get(f"{label}.{part}", "") for part in ("major", "minor", "rev")]
    labelled = machine.labels.get(f"{label}-version.full") or ".".join(filter(None, parts))
    text, who = (machine.driver, "agent") if machine.driver else (labelled, "label")
    nvidia = re.search(r"(?:^|nvidia )(\d+)", text)
    if not text:
        yield _unknown("driver", "neither an agent nor a label tells it", "on the node: nvidia-smi, or aliquot doctor")
    else:
        old = nvidia is not None and int(nvidia[1]) < _LIMITING_DRIVER
        lacks = f": limits in the driver itself come with r{_LIMITING_DRIVER}" if old else ""
        yield Finding(Mark.GOOD, "driver", f"{text}, as its {who} says{lacks}")
    if nvidia and toolkit:
        yield Finding(Mark.GOOD, "toolkit", toolkit)
    elif nvidia:
        why = "no DaemonSet here brings NVIDIA's container toolkit, so it is the machine's own, if there is one"
        yield _unknown("toolkit", why, "on the node: nvidia-ctk --version")


def _settings(kubelet: Mapping[str, Any] | str, wants: Wants) -> Finding:
    if isinstance(kubelet, str):
        look = (
            "kubectl get --raw /api/v1/nodes/NODE/proxy/configz; on the node: grep cgroup /var/lib/kubelet/config.yaml"
        )
        return _unknown("cgroup driver", kubelet, look)
    switched, root = kubelet.get("featureGates") or {}, kubelet.get("cgroupRoot") or "/"
    off = [gate for gate in wants.gates("kubelet") if not switched.get(gate, True)]
    if off:
        mend = "take it out of featureGates in the kubelet's configuration, and restart it"
        return Finding(Mark.BAD, "feature gates", f"{', '.join(off)} is switched off in the kubelet", mend)
    if root != wants.kubelet_cgroup_root:
        text = f"the kubelet's cgroupRoot is {root}, and our part looks below {wants.kubelet_cgroup_root}"
        mend = f"helm upgrade aliquot deploy/chart/aliquot --set node.kubeletCgroupRoot={root}"
        return Finding(Mark.BAD, "cgroup driver", text, mend)
    return Finding(Mark.GOOD, "cgroup driver", f"{kubelet.get('cgroupDriver') or 'cgroupfs'}, below {root}")
