"""What a lease wants to be served as, and what nodes can serve. To the core both are labels, which a request selects
nodes by like any other, so that placement, preemption and reservations need not know of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from aliquot.common.errors import InvalidFieldError
from aliquot.coordinator.core.values.types import SERVE_LABELS
from aliquot.v1 import types_pb2

Labels = tuple[tuple[str, str], ...]
REMOTE: tuple[str, str] = (f"{SERVE_LABELS}remote", "true")
_LABEL_OF: dict[int, tuple[str, str]] = {
    types_pb2.SERVE_REMOTE: REMOTE,
    types_pb2.SERVE_CUDA: (f"{SERVE_LABELS}cuda", "true"),
}
_KNOWN = (types_pb2.SERVE_UNSPECIFIED, types_pb2.SERVE_LOCAL, *_LABEL_OF)
SERVES_MAX = 16
"""Ways to serve that a node may name."""


def without_serving(labels: Mapping[str, str], field: str) -> Mapping[str, str]:
    """Labels as people give them. Raises InvalidFieldError where they claim what only agents and requests say."""
    for key in labels:
        if key.startswith(SERVE_LABELS):
            raise InvalidFieldError(
                field, f"labels below {SERVE_LABELS} are the pool's own", hint="a request says `serve`; agents offer it"
            )
    return labels


def selector_of(serve: int) -> Labels:
    """What nodes must have for a request. Raises InvalidFieldError."""
    if serve not in _KNOWN:
        raise InvalidFieldError("request.serve", f"{serve} is not a way to serve a lease")
    return (_LABEL_OF[serve],) if serve in _LABEL_OF else ()


def serve_of(selector: Labels) -> types_pb2.Serve.ValueType:
    """The other way around."""
    return next(iter(serves_of(selector)), types_pb2.SERVE_UNSPECIFIED)


def labels_of(serves: Iterable[int]) -> Labels:
    """What a node has whose agent says that it can serve leases so. Unknown ones are a newer agent's."""
    return tuple(_LABEL_OF[serve] for serve in sorted(set(serves)) if serve in _LABEL_OF)


def serves_of(labels: Labels) -> list[types_pb2.Serve.ValueType]:
    """The other way around."""
    return [types_pb2.Serve.ValueType(serve) for serve, label in _LABEL_OF.items() if label in labels]


def plain(labels: Labels) -> dict[str, str]:
    """Labels as people gave them."""
    return {key: value for key, value in labels if not key.startswith(SERVE_LABELS)}
