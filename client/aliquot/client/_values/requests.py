"""What a launcher can ask for, as one immutable value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from aliquot.client._values.base import Word


class Tier(Word):
    """How a slice's memory limit is enforced, weakest first; read back from the device."""

    UNSPECIFIED = "UNSPECIFIED"
    NONE = "NONE"
    WATCHDOG = "WATCHDOG"
    PRELOAD = "PRELOAD"
    MPS = "MPS"
    DRIVER = "DRIVER"
    MIG = "MIG"


class Serve(Word):
    """Where the programs that use a lease run."""

    UNSPECIFIED = "UNSPECIFIED"
    """As LOCAL."""
    LOCAL = "LOCAL"
    """On its nodes, where they attach."""
    REMOTE = "REMOTE"
    """Anywhere: an agent starts a process for each member, whose endpoint its slices name."""
    CUDA = "CUDA"
    """As REMOTE, by CUDA's driver alone (`aliquot.remote.cuda`): nodes need no PyTorch for it."""


class Topology(Word):
    """What the links between a member's devices should be."""

    UNSPECIFIED = "UNSPECIFIED"
    ANY = "ANY"
    PREFER_ISLAND = "PREFER_ISLAND"
    REQUIRE_ISLAND = "REQUIRE_ISLAND"


class RequestOptions(TypedDict, total=False):
    """The fields of `Request` as keyword arguments; they are described there."""

    tenant: str
    queue: str
    pool: str
    priority: int
    gang_size: int
    cpu_milli: int
    host_memory_bytes: int
    min_tier: Tier
    time_limit_s: int
    min_run_s: int
    grace_s: int
    preemptible: bool
    movable: bool
    opportunistic: bool
    or_mig: bool
    node_selector: Mapping[str, str]
    node_ids: Sequence[str]
    avoid_node_ids: Sequence[str]
    affinity_group: str
    max_per_node: int
    spread_domains: bool
    topology: Topology
    name: str
    labels: Mapping[str, str]
    ttl_s: int
    detached: bool
    no_queue: bool
    min_count: int
    max_count: int
    serve: Serve
    stop_signal: str
    same_card: bool
    cuda_ordinals: bool


@dataclass(frozen=True, slots=True)
class Request:
    """What is asked for. Zero and empty mean "unset"; the coordinator's defaults are then used."""

    gpu: str
    """The request grammar: `0.25(A100),10Gi`, `2x0.5(A100|H100),20Gi`, `1(H100>A100)`, `10Gi`, `2`, `1g.10gb`."""
    tenant: str = ""
    """Who pays. Empty: the pool's tenant (see `Pool`)."""
    queue: str = ""
    pool: str = ""
    priority: int = 0
    """-1000..1000, higher first."""
    gang_size: int = 1
    """Members, placed all or nothing."""
    cpu_milli: int = 0
    """Per member."""
    host_memory_bytes: int = 0
    """Per member."""
    min_tier: Tier = Tier.UNSPECIFIED
    """Refuse, with the reason, if the memory limit can't be enforced this strongly."""
    time_limit_s: int = 0
    min_run_s: int = 0
    """Not preempted before it has run this long."""
    grace_s: int = 0
    """Between the stop signal and SIGKILL when it is stopped; 0 = 30."""
    preemptible: bool = False
    movable: bool = False
    opportunistic: bool = False
    """It may also be placed on what idle leases do not use, and goes back to its queue when they do something."""
    or_mig: bool = False
    """Of a part of a device: a MIG instance will do as well. It is the smallest profile with as much, and all of it is
    charged."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    node_ids: Sequence[str] = ()
    """When not empty, only these nodes."""
    avoid_node_ids: Sequence[str] = ()
    affinity_group: str = ""
    max_per_node: int = 0
    spread_domains: bool = False
    topology: Topology = Topology.UNSPECIFIED
    name: str = ""
    """For people; at most 128 characters."""
    labels: Mapping[str, str] = field(default_factory=dict)
    ttl_s: int = 0
    """The lease expires when no keep-alive has named it for this long; 0 = 60."""
    detached: bool = False
    """No keep-alive needed: it ends by release, time limit or preemption only."""
    no_queue: bool = False
    """Refuse instead of queueing when nothing fits now."""
    min_count: int = 0
    """The fewest slices that an elastic lease keeps; a multiple of a member's. 0: what is asked for."""
    max_count: int = 0
    """The most slices that it grows to while they are idle; a multiple of a member's. 0: what is asked for."""
    serve: Serve = Serve.UNSPECIFIED
    """REMOTE: granted only on nodes that can serve it, ACTIVE once its processes answer; its slices name endpoints."""
    stop_signal: str = ""
    """By which its programs are told to end, for whatever reason it ends: `TERM` (empty), `INT`, `HUP`, `QUIT`, `USR1`,
    `USR2`, `ALRM`, `XCPU`, `WINCH`."""
    same_card: bool = False
    """Members may be on parts of one card; without it each is on a card of its own, as NCCL needs it."""
    cuda_ordinals: bool = False
    """On its nodes CUDA_VISIBLE_DEVICES names its devices by number, for programs that read integers."""
