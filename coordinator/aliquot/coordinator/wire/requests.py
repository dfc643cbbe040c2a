"""Reading a LeaseRequest: every field checked against its stated range, with its path in the error.

Reading is pure and launchers send the same few bodies over and over, so it is remembered by the body's bytes; the
hash of those bytes is also what an idempotency key is compared by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

import msgspec

from aliquot.common import catalog, limits, names
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Reader
from aliquot.common.request import GpuRequest, parse_request
from aliquot.common.stopping import validate_stop_signal
from aliquot.common.tiers import Tier
from aliquot.coordinator.core.inventory.records import asks_for_part
from aliquot.coordinator.core.values.types import WHOLE_SHARE_MILLI, Admits, Demand, RequestSpec, Topology
from aliquot.coordinator.wire.serving import selector_of, without_serving
from aliquot.v1 import types_pb2

DEFAULT_TENANT = "default"
MAX_SLICES_PER_LEASE = 8192
"""Of all members together: what still fits one message and one commit group comfortably."""
MAX_HOST_CPU_MILLI = 10**9
MAX_HOST_MEMORY_BYTES = 1 << 48
_MAX_PER_NODE = 1 << 20
_TIME_S_MAX = limits.MAX_TIME_LIMIT_S
_TIERS = frozenset(int(tier) for tier in Tier)
_CACHED_BODIES = 4096
_CACHED_BODY_BYTES_MAX = 4096

_TOPOLOGIES = {
    types_pb2.TOPOLOGY_UNSPECIFIED: Topology.PREFER_ISLAND,
    types_pb2.TOPOLOGY_ANY: Topology.ANY,
    types_pb2.TOPOLOGY_PREFER_ISLAND: Topology.PREFER_ISLAND,
    types_pb2.TOPOLOGY_REQUIRE_ISLAND: Topology.REQUIRE_ISLAND,
}


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """A request as the core takes it."""

    spec: RequestSpec
    body_sha256: bytes
    no_queue: bool


def read_request(message: types_pb2.LeaseRequest, node_id_of: Callable[[str], str]) -> ReadRequest:
    """Check and convert; `node_id_of` gives the id of a node that is named by its id or its name.

    Raises InvalidFieldError or RequestSyntaxError.
    """
    body = message.SerializeToString(deterministic=True)
    read = _read(message, body) if len(body) > _CACHED_BODY_BYTES_MAX else _read_cached(body)
    demand = read.spec.demand
    if not demand.node_ids and not demand.avoid_node_ids:
        return read
    # Not remembered with the rest: whose a name is changes as nodes come and go.
    demand = msgspec.structs.replace(
        demand,
        node_ids=tuple(dict.fromkeys(map(node_id_of, demand.node_ids))),
        avoid_node_ids=tuple(dict.fromkeys(map(node_id_of, demand.avoid_node_ids))),
    )
    return replace(read, spec=msgspec.structs.replace(read.spec, demand=demand))


@lru_cache(maxsize=_CACHED_BODIES)
def _read_cached(body: bytes) -> ReadRequest:
    return _read(types_pb2.LeaseRequest.FromString(body), body)


def _read(message: types_pb2.LeaseRequest, body: bytes) -> ReadRequest:
    gpu = _read_gpu(message)
    if message.gang_size * gpu.count > MAX_SLICES_PER_LEASE:
        raise InvalidFieldError(
            "request.gang_size", f"{message.gang_size * gpu.count} slices in all; at most {MAX_SLICES_PER_LEASE}"
        )
    _check_shape(message, gpu.count)
    if message.detached and message.ttl_s:
        raise InvalidFieldError(
            "request.ttl_s", "a detached lease has no TTL", hint="leave out ttl_s, or leave out detached"
        )
    spec = msgspec.structs.replace(_SPEC.read(message), demand=_demand(message, gpu, _single_on(message)))
    return ReadRequest(spec, hashlib.sha256(body).digest(), message.no_queue)


_ANYTHING = Demand()
_SPEC = Reader(
    types_pb2.LeaseRequest,
    RequestSpec,
    {
        "demand": lambda *_: _ANYTHING,
        "tenant": lambda message, _: _named(names.validate_tenant, message, "tenant") or DEFAULT_TENANT,
        "queue": lambda message, _: _named(names.validate_queue, message, "queue"),
        "time_limit_ms": lambda message, _: _range(message.time_limit_s, "request.time_limit_s", _TIME_S_MAX) * 1000,
        "min_run_ms": lambda message, _: _range(message.min_run_s, "request.min_run_s", _TIME_S_MAX) * 1000,
        "grace_ms": lambda message, _: (
            (_range(message.grace_s, "request.grace_s", limits.MAX_GRACE_S) or limits.DEFAULT_GRACE_S) * 1000
        ),
        "preemptible": lambda message, _: message.preemptible or message.opportunistic,
        "ttl_ms": lambda message, _: 0 if message.detached else _ttl_s(message) * 1000,
        "name": lambda message, _: names.validate_text(message.name, "request.name"),
        "labels": lambda message, _: tuple(sorted(names.validate_labels(message.labels, "request.labels").items())),
        "gpu_text": "gpu",
        "stop_signal": lambda message, _: _named(validate_stop_signal, message, "stop_signal"),
    },
    rest="what says where it fits is of its demand",
)
"""All but the demand, which is put in once it is read. Equal names without a bound need no line."""


def _named(validate: Callable[[str, str], str], message: types_pb2.LeaseRequest, field: str) -> str:
    text: str = getattr(message, field)
    return validate(text, f"request.{field}") if text else ""


def _ttl_s(message: types_pb2.LeaseRequest) -> int:
    return _range(message.ttl_s, "request.ttl_s", limits.MAX_LEASE_TTL_S) or limits.DEFAULT_LEASE_TTL_S


def _read_gpu(message: types_pb2.LeaseRequest) -> GpuRequest:
    ask = message.WhichOneof("ask")
    if ask == "gpu":
        gpu = parse_request(message.gpu)
    elif ask == "spec":
        _check_models(message.spec)
        try:
            gpu = GpuRequest.of_spec(message.spec)
        except InvalidFieldError as error:
            raise InvalidFieldError(
                f"request.spec.{error.field}", error.message.removeprefix(f"{error.field}: "), hint=error.hint
            ) from error
    else:
        raise InvalidFieldError(
            "request.gpu",
            "nothing is asked for",
            hint='write what you need, such as "0.25(A100),10Gi", or fill in spec',
        )
    if gpu.count > limits.MAX_SLICES_PER_MEMBER:
        raise InvalidFieldError(
            "request.spec.count",
            f"{gpu.count} slices on one node; at most {limits.MAX_SLICES_PER_MEMBER}",
            hint="use gang_size for members on several nodes",
        )
    return gpu


def _check_models(spec: types_pb2.GpuSpec) -> None:
    """The bounds first: what follows canonicalises every name."""
    if len(spec.models) > limits.MAX_MODEL_PREFERENCES:
        raise InvalidFieldError(
            "request.spec.models", f"{len(spec.models)} preferences; at most {limits.MAX_MODEL_PREFERENCES}"
        )
    for level, models in enumerate(spec.models):
        if len(models.any_of) > limits.MAX_MODELS_PER_SET:
            raise InvalidFieldError(
                f"request.spec.models[{level}].any_of",
                f"{len(models.any_of)} models; at most {limits.MAX_MODELS_PER_SET}",
            )
    if len(spec.vendors) > limits.MAX_MODEL_PREFERENCES:
        raise InvalidFieldError(
            "request.spec.vendors", f"{len(spec.vendors)} preferences; at most {limits.MAX_MODEL_PREFERENCES}"
        )
    if max(map(len, (spec.mig_profile, spec.vendor, *spec.vendors))) > limits.MAX_MODEL_CHARS:
        raise InvalidFieldError("request.spec", f"a name is longer than {limits.MAX_MODEL_CHARS} characters")


def _check_shape(message: types_pb2.LeaseRequest, count: int) -> None:
    _range(message.gang_size, "request.gang_size", limits.MAX_GANG_SIZE)
    if not limits.MIN_PRIORITY <= message.priority <= limits.MAX_PRIORITY:
        raise InvalidFieldError(
            "request.priority",
            f"{message.priority} is not within {limits.MIN_PRIORITY}..{limits.MAX_PRIORITY}",
            hint="0 is normal, higher goes first",
        )
    _check_bounds(message, count)


def _check_bounds(message: types_pb2.LeaseRequest, count: int) -> None:
    """Of an elastic lease, which changes by whole members."""
    asked = count * (message.gang_size or 1)
    _range(message.min_count, "request.min_count", MAX_SLICES_PER_LEASE)
    _range(message.max_count, "request.max_count", MAX_SLICES_PER_LEASE)
    if message.min_count > asked:
        raise InvalidFieldError("request.min_count", f"{message.min_count} is more than the {asked} asked for")
    if message.max_count and message.max_count < asked:
        raise InvalidFieldError("request.max_count", f"{message.max_count} is less than the {asked} asked for")
    for field, value in (("min_count", message.min_count), ("max_count", message.max_count)):
        if value and (not count or value % count):
            raise InvalidFieldError(
                f"request.{field}",
                f"{value} slices are not whole members of {count}",
                hint="an elastic lease changes by whole members: ask for members of fewer slices (gang_size)",
            )


def _single_on(message: types_pb2.LeaseRequest) -> Admits:
    """The most restricted devices for it, if it is about one device."""
    if message.min_count or message.max_count:
        return Admits.ALL  # what it grows by works with the rest of it
    return Admits.PREEMPTIBLE if message.preemptible or message.opportunistic else Admits.SINGLE


def _demand(message: types_pb2.LeaseRequest, gpu: GpuRequest, single_on: Admits) -> Demand:
    if message.min_tier and int(message.min_tier) not in _TIERS:
        raise InvalidFieldError("request.min_tier", f"{message.min_tier} is not a tier")
    if message.topology not in _TOPOLOGIES:
        raise InvalidFieldError("request.topology", f"{message.topology} is not a topology")
    demand = Demand(
        count=gpu.count,
        share_milli=gpu.share_milli or 0,
        memory_bytes=gpu.memory_bytes or 0,
        models=tuple(map(catalog.with_families, gpu.models)),
        vendor=gpu.vendor or "",
        mig_profile=gpu.mig_profile or "",
        pool=_named(names.validate_pool, message, "pool"),
        gang_size=message.gang_size or 1,
        cpu_milli=_range(message.cpu_milli, "request.cpu_milli", MAX_HOST_CPU_MILLI),
        host_memory_bytes=_range(message.host_memory_bytes, "request.host_memory_bytes", MAX_HOST_MEMORY_BYTES),
        node_selector=_node_selector(message),
        node_ids=_node_ids(message.node_ids, "request.node_ids"),
        avoid_node_ids=_node_ids(message.avoid_node_ids, "request.avoid_node_ids"),
        affinity_group=_named(names.validate_tenant, message, "affinity_group"),
        max_per_node=_range(message.max_per_node, "request.max_per_node", _MAX_PER_NODE),
        spread_domains=message.spread_domains,
        topology=_TOPOLOGIES[message.topology],
        min_tier=message.min_tier,
        opportunistic=message.opportunistic,
        single_on=single_on,
        vendors=gpu.vendors,
        or_mig=message.or_mig,
        apart=not message.same_card and (message.gang_size > 1 or message.max_count > gpu.count) and _is_part(gpu),
    )
    if demand.or_mig and not asks_for_part(demand):
        raise InvalidFieldError(
            "request.or_mig",
            "a MIG instance may stand in for a part of a device only",
            hint="ask for a share below 1 or for memory, such as 0.25,10Gi; or leave out or_mig",
        )
    return demand


def _is_part(gpu: GpuRequest) -> bool:
    """Whether two slices of it may be on one card."""
    return bool(gpu.mig_profile) or (bool(gpu.count) and gpu.share_milli != WHOLE_SHARE_MILLI)


def _node_selector(message: types_pb2.LeaseRequest) -> tuple[tuple[str, str], ...]:
    labels = names.validate_labels(message.node_selector, "request.node_selector")
    return tuple(sorted((*without_serving(labels, "request.node_selector").items(), *selector_of(message.serve))))


def _node_ids(values: Iterable[str], field: str) -> tuple[str, ...]:
    node_ids = tuple(dict.fromkeys(values))
    if len(node_ids) > limits.MAX_NODE_IDS_PER_REQUEST:
        raise InvalidFieldError(field, f"{len(node_ids)} nodes; at most {limits.MAX_NODE_IDS_PER_REQUEST}")
    for index, node_id in enumerate(node_ids):
        names.validate_node(node_id, f"{field}[{index}]")
    return node_ids


def _range(value: int, field: str, most: int) -> int:
    if value > most:
        raise InvalidFieldError(field, f"{value} is above the most that is allowed, {most}")
    return value
