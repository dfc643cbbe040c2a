"""What a launcher can ask for, as one immutable value, and how it becomes a message of the contract.

The GPU text is parsed here, before anything is sent, so that a typo costs no round trip. The coordinator parses it
again, and its answer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypedDict

from aliquot.client._messages import sendable
from aliquot.client._values.leases import MemberPlace, Serve, Tier, Topology
from aliquot.common import catalog
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.common.ids import IdGenerator
from aliquot.common.request import GpuRequest, format_request, parse_request
from aliquot.v1 import leases_pb2, types_pb2

_ids = IdGenerator()


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


def as_request(gpu: str | Request, options: RequestOptions, default_tenant: str) -> Request:
    """One request from the ways to write it. Raises `RequestSyntaxError` for a text that can't be read."""
    if isinstance(gpu, Request):
        if options:
            raise TypeError("give the options inside the Request, or beside a text, not both")
        request = gpu
    else:
        request = Request(gpu, **options)
    parse_request(request.gpu)
    if request.tenant or not default_tenant:
        return request
    return replace(request, tenant=default_tenant)


Places = str | Sequence[str | MemberPlace]
"""One for each member of a request: a node (id or name), or a node and its devices. A text is one node."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request under an idempotency key: repeated with the same one it gives the same lease."""

    request: Request
    key: str
    places: Places | None = None
    """Exactly there, or refused; None: anywhere."""

    def message(self) -> leases_pb2.AllocateRequest | leases_pb2.GrantOnRequest:
        """Of the call that asks for it. Raises `InvalidRequest` for values that it can't carry."""
        body, places = to_proto(self.request), self.places
        with sendable():
            if places is None:
                return leases_pb2.AllocateRequest(request=body, idempotency_key=self.key)
            named = [places] if isinstance(places, str) else places
            there = [
                leases_pb2.MemberPlace(node_id=place) if isinstance(place, str) else _placed(place) for place in named
            ]
            return leases_pb2.GrantOnRequest(request=body, idempotency_key=self.key, places=there)


def _placed(place: MemberPlace) -> leases_pb2.MemberPlace:
    return leases_pb2.MemberPlace(node_id=place.node_id, device_uuids=place.device_uuids)


def fresh_key() -> str:
    """A new idempotency key."""
    return _ids.idempotency_key()


_REQUEST = Writer(
    types_pb2.LeaseRequest,
    Request,
    {"gang_size": lambda request, _: request.gang_size if request.gang_size != 1 else 0},
    left_out={"spec": "the text says it"},
)


def to_proto(request: Request) -> types_pb2.LeaseRequest:
    """The body of a request. Raises `InvalidRequest` for values that it can't carry."""
    with sendable():
        return _REQUEST.message(request)  # also of a subclass, such as the console's


def _without_members(names: Iterable[str]) -> list[str]:
    """A set without the models whose family is in it: coordinators expand families, people don't."""
    named = list(names)
    return [
        name
        for name in named
        if (model := catalog.BY_NAME.get(name)) is None or model.family == name or model.family not in named
    ]


def describe_ask(request: types_pb2.LeaseRequest) -> str:
    """The GPU part as text, from either of the two forms that a message may carry."""
    if request.WhichOneof("ask") != "spec":
        return request.gpu
    # Whoever follows leases reads the same few asks again with each change.
    return _text_of(request.spec.SerializeToString())


@lru_cache(maxsize=1024)
def _text_of(written: bytes) -> str:
    spec = types_pb2.GpuSpec.FromString(written)
    try:
        return format_request(
            GpuRequest.build(
                count=spec.count,
                share_milli=spec.share_milli,
                memory_bytes=spec.memory_bytes,
                models=[_without_members(models.any_of) for models in spec.models],
                vendor=spec.vendor,
                mig_profile=spec.mig_profile,
                vendors=spec.vendors,
            )
        )
    except InvalidFieldError:
        # A newer coordinator may know requests that this grammar can't write.
        return ""
