"""What goes out: the SDK's values as JSON, their shape for the OpenAPI document, and errors as problems (RFC 9457)."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from functools import cache
from http import HTTPStatus
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import msgspec
from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, Field, create_model
from starlette.exceptions import HTTPException

from aliquot import client
from aliquot.client import Lease
from aliquot.client._values.base import UNBOUNDED
from aliquot.client.documents import of_error, plain
from aliquot.common.errors import AliquotError, ConfigError, InvalidFieldError, RequestSyntaxError, SecurityError

JSON: Final = "application/json"
PROBLEM: Final = "application/problem+json"
LOGIN: Final = "/login"
_CHANGED: Final = "CHANGED_MEANWHILE"
_NOT_SERVED: Final = "NOT_SERVED"
"""By a coordinator that is older than this console."""


class Violation(BaseModel):
    """One field or quota that a request violates."""

    subject: str = Field(description="The field's path, or the quota's owner.")
    description: str


class Problem(BaseModel):
    """Why a request was refused, and what to do next (RFC 9457)."""

    type: str = Field(description="`urn:aliquot:` and the reason: a stable name.")
    title: str
    status: int
    reason: str = Field(description="A stable word, as in the contract's errors.")
    detail: str
    hint: str = Field("", description="What to do next.")
    violations: list[Violation] = []
    smallest_change: str = Field("", description="The smallest change with which the request would fit.")
    retry_after_s: float | None = None
    login: str = Field("", description="Where a browser logs in, where nobody is known who asks.")


_STATUS: Final[tuple[tuple[type[AliquotError], HTTPStatus], ...]] = (
    # The first that fits counts.
    (client.NotLoggedIn, HTTPStatus.UNAUTHORIZED),
    (SecurityError, HTTPStatus.UNAUTHORIZED),
    (client.NotPermitted, HTTPStatus.FORBIDDEN),
    (client.NotFound, HTTPStatus.NOT_FOUND),
    (client.InvalidRequest, HTTPStatus.BAD_REQUEST),
    (client.NeverFits, HTTPStatus.UNPROCESSABLE_ENTITY),
    (client.TierUnavailable, HTTPStatus.UNPROCESSABLE_ENTITY),
    (client.Refused, HTTPStatus.CONFLICT),
    (client.Conflict, HTTPStatus.CONFLICT),
    (client.LeaseLost, HTTPStatus.CONFLICT),
    (client.Overloaded, HTTPStatus.TOO_MANY_REQUESTS),
    (client.Unavailable, HTTPStatus.SERVICE_UNAVAILABLE),
    (client.DeadlineExceeded, HTTPStatus.GATEWAY_TIMEOUT),
    (client.WatchCompacted, HTTPStatus.GONE),
    (client.PoolError, HTTPStatus.BAD_GATEWAY),
    (InvalidFieldError, HTTPStatus.BAD_REQUEST),
    (RequestSyntaxError, HTTPStatus.BAD_REQUEST),
    (ConfigError, HTTPStatus.SERVICE_UNAVAILABLE),
    (AliquotError, HTTPStatus.BAD_REQUEST),
)


def answer(value: object, status: int = HTTPStatus.OK, headers: Mapping[str, str] | None = None) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(plain(value)), status, headers, JSON)


def page_of(page: client.Page[Any], fields: str) -> Response:
    """A page of a list, whose items have these fields alone; none: all. Raises InvalidRequest."""
    document = plain(page)
    if fields:
        wanted = [word.strip() for word in fields.split(",")]
        if document["items"] and (unknown := [word for word in wanted if word not in document["items"][0]]):
            raise client.InvalidRequest(
                f"items have no field {unknown[0][:64]!r}", hint=f"they have {', '.join(document['items'][0])}"
            )
        document["items"] = [{word: item[word] for word in wanted} for item in document["items"]]
    return answer(document)


def require_match(if_match: str, tag: str) -> None:
    """Raises Conflict (412) where somebody acts on what is no longer so."""
    if if_match and if_match.strip() != "*" and tag not in [each.strip() for each in if_match.split(",")]:
        raise client.Conflict(
            f"it has changed since: its ETag is {tag}", hint="look again, then decide", reason=_CHANGED
        )


def refusal(error: AliquotError) -> Response:
    """An error of the SDK as a problem."""
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    found = of_error(error)
    if found["reason"] == _NOT_SERVED:
        status = HTTPStatus.NOT_IMPLEMENTED
    if found["reason"] == _CHANGED:
        status = HTTPStatus.PRECONDITION_FAILED
    explanation = found.pop("explanation", None) or {}
    changes = (missing["smallest_change"] for missing in explanation.get("missing", ()))
    return problem(
        status,
        found["reason"],
        found["message"],
        hint=found["hint"],
        violations=found.get("violations", []),
        smallest_change=next((change for change in changes if change), ""),
        retry_after_s=found.get("retry_after_s"),
    )


def problem(status: int, reason: str, detail: str, **more: Any) -> Response:  # noqa: ANN401 - JSON
    """Why not, and what to do next (RFC 9457)."""
    body = {
        "type": f"urn:aliquot:{reason}",
        "title": HTTPStatus(status).phrase,
        "status": int(status),
        "reason": reason,
        "detail": detail,
        **{key: value for key, value in more.items() if value not in ("", [], None)},
    }
    headers = {}
    if status == HTTPStatus.UNAUTHORIZED:
        body["login"] = LOGIN
        headers["WWW-Authenticate"] = "Bearer"
    if (after_s := more.get("retry_after_s")) is not None or status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = str(max(1, round(after_s or 1)))
    return Response(msgspec.json.encode(body), status, headers, PROBLEM)


async def on_refused(_: Request, error: Exception) -> Response:
    """A handler of FastAPI's."""
    assert isinstance(error, AliquotError)
    return refusal(error)


async def on_invalid(_: Request, error: Exception) -> Response:
    """A request that has not the shape of the OpenAPI document."""
    assert isinstance(error, RequestValidationError)
    violations = [
        {"subject": ".".join(map(str, each["loc"])), "description": str(each["msg"])} for each in error.errors()[:20]
    ]
    detail = f"{violations[0]['subject']}: {violations[0]['description']}"
    return problem(HTTPStatus.BAD_REQUEST, "INVALID_FIELD", detail, violations=violations)


async def on_http(_: Request, error: Exception) -> Response:
    """No such path, or no such method there."""
    assert isinstance(error, HTTPException)
    reason = "NO_SUCH_PATH" if error.status_code == HTTPStatus.NOT_FOUND else HTTPStatus(error.status_code).name
    response = problem(error.status_code, reason, str(error.detail))
    response.headers.update(error.headers or {})
    return response


def shows(kind: Any, status: int = HTTPStatus.OK) -> dict[int | str, dict[str, Any]]:  # noqa: ANN401 - a type form
    """For the OpenAPI document: what a route answers, and that everything else is a problem."""
    problem = {"model": Problem, "content": {PROBLEM: {}}, "description": "Why not, and what to do next"}
    return {int(status): {"model": shape(kind), "description": "Done"}, "4XX": problem, "5XX": problem}


def shows_page(of: Any) -> dict[int | str, dict[str, Any]]:  # noqa: ANN401 - a type
    """As `shows`, of a page of a list; or, asked for with `fields`, of some fields of its items."""
    whole: Any = shape(client.Page[of])
    return shows(Union[whole, _partial(of, whole)])  # noqa: UP007 - made


@cache
def _partial(of: Any, whole: Any) -> Any:  # noqa: ANN401 - types
    """The same page, whose items have any of their fields and no others."""
    optional: dict[str, Any] = {name: (field.annotation, None) for name, field in shape(of).model_fields.items()}
    doc = f"Some fields of a {of.__name__}."
    parts: Any = create_model(f"{of.__name__}Parts", __config__=ConfigDict(extra="forbid"), __doc__=doc, **optional)
    fields: dict[str, Any] = {name: (field.annotation, ...) for name, field in whole.model_fields.items()}
    fields["items"] = (list[parts], ...)
    doc = "A page of a list that was asked for with `fields`."
    return create_model(f"{whole.__name__}Parts", __doc__=doc, **fields)


@cache
def shape(kind: Any) -> Any:  # noqa: ANN401 - a type form
    """The type of `plain(value)` for values of this type: no secrets of leases, unbounded sums as strings."""
    origin, arguments = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return kind
    if origin in (Union, UnionType):
        return Union[tuple(NoneType if each is NoneType else shape(each) for each in arguments)]  # noqa: UP007 - made
    if origin is tuple:
        return list[shape(arguments[0])]  # type: ignore[misc]
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return dict[str, shape(arguments[1])]  # type: ignore[misc]
    if dataclasses.is_dataclass(origin):
        return _document(origin, dict(zip(getattr(origin, "__parameters__", ()), arguments, strict=True)))
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        return _document(kind, {})
    if isinstance(kind, type) and issubclass(kind, Enum):
        return str  # a newer coordinator may know more words
    return kind


def _document(kind: Any, bound: Mapping[Any, Any]) -> type[BaseModel]:  # noqa: ANN401 - a dataclass
    hints = get_type_hints(kind)
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(kind):
        if kind is Lease and field.name == "secret":
            continue
        hint = hints[field.name]
        if UNBOUNDED in field.metadata:
            hint = str if hint is int else str | None
        fields[field.name] = (shape(_bind(hint, bound)), ...)
    # `Request` is what comes in, of which most may be left out.
    name = ("LeaseRequest" if kind is client.Request else kind.__name__) + "".join(
        each.__name__ for each in bound.values()
    )
    return create_model(name, __doc__=(kind.__doc__ or "").strip(), **fields)


def _bind(hint: Any, bound: Mapping[Any, Any]) -> Any:  # noqa: ANN401 - type forms
    arguments = tuple(bound[each] for each in getattr(hint, "__parameters__", ()))
    return hint[arguments] if arguments else hint
