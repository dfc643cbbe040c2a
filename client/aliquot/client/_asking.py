"""How what a launcher asks for becomes a message of the contract.

The GPU text is parsed here, before anything is sent, so that a typo costs no round trip. The coordinator parses it
again, and its answer counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from aliquot.client._messages import sendable
from aliquot.client._values.leases import MemberPlace
from aliquot.client._values.requests import Request, RequestOptions
from aliquot.common import catalog
from aliquot.common.errors import InvalidFieldError
from aliquot.common.fields import Writer
from aliquot.common.ids import IdGenerator
from aliquot.common.request import GpuRequest, format_request, parse_request
from aliquot.v1 import leases_pb2, types_pb2

_ids = IdGenerator()


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
    for models in spec.models:
        models.any_of[:] = _without_members(models.any_of)
    try:
        return format_request(GpuRequest.of_spec(spec))
    except InvalidFieldError:
        # A newer coordinator may know requests that this grammar can't write.
        return ""
