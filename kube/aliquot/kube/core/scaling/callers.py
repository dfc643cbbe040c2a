"""Who calls an aggregated API: the front proxy's word, or a token's; and what a caller asks to be allowed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from aliquot.common.errors import AliquotError, ConfigError
from aliquot.kube.core.scaling.metrics_documents import CUSTOM, Asked

MASTERS: Final = "system:masters"
EVERYBODY: Final = "system:authenticated"
ANONYMOUS: Final = "system:anonymous"
CONFIG_MAP: Final = "extension-apiserver-authentication"
"""In kube-system: whose certificates and which headers name the caller."""
_USER: Final = ("X-Remote-User",)
_GROUP: Final = ("X-Remote-Group",)
_EXTRA: Final = ("X-Remote-Extra-",)


class NotKnown(AliquotError):
    """Nobody that is known."""

    reason = "NOT_KNOWN"


@dataclass(frozen=True, slots=True)
class Caller:
    """A user of the API."""

    name: str
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FrontProxy:
    """Who may say on whose behalf it calls."""

    ca_pem: str
    allowed_names: tuple[str, ...] = ()
    """Of its certificate; none: any of that authority's."""
    user_headers: tuple[str, ...] = _USER
    group_headers: tuple[str, ...] = _GROUP
    extra_prefixes: tuple[str, ...] = _EXTRA

    def caller(self, certified: str, headers: Sequence[tuple[str, str]]) -> Caller:
        """Whom the holder of a certificate (its common name) calls for. Raises NotKnown."""
        if self.allowed_names and certified not in self.allowed_names:
            raise NotKnown(f"a certificate for {certified!r} is not the front proxy's")
        users = _all(headers, self.user_headers)
        if not users or not users[0]:
            raise NotKnown("the front proxy does not say on whose behalf it calls")
        extra: dict[str, tuple[str, ...]] = {}
        for name, value in headers:
            for prefix in self.extra_prefixes:
                if name.lower().startswith(prefix.lower()):
                    key = name[len(prefix) :].lower()
                    extra[key] = (*extra.get(key, ()), value)
        return authenticated(users[0], _all(headers, self.group_headers), extra)


def authenticated(name: str, groups: Sequence[str], extra: Mapping[str, tuple[str, ...]]) -> Caller:
    """A caller with the group that everybody has who is known: the front proxy does not name it.

    Roles count on it. The API server's own aggregator, which has no other group, learns by it which APIs there are.
    """
    if name != ANONYMOUS and EVERYBODY not in groups:
        groups = [*groups, EVERYBODY]
    return Caller(name, tuple(groups), extra)


def front_proxy(data: Mapping[str, str]) -> FrontProxy:
    """From the ConfigMap. Raises ConfigError where it would take the word of others."""
    ca_pem = data.get("requestheader-client-ca-file", "")
    if not ca_pem:
        raise ConfigError(
            f"ConfigMap kube-system/{CONFIG_MAP} names no requestheader-client-ca-file",
            hint="start kube-apiserver with --requestheader-client-ca-file: aggregation needs it",
        )
    names = _list(data, "requestheader-allowed-names")
    if not names and ca_pem.strip() == data.get("client-ca-file", "").strip():
        raise ConfigError(
            "anybody with a client certificate of this cluster could call in another's name",
            hint="start kube-apiserver with an authority of its own, or names, for the front proxy",
        )
    return FrontProxy(
        ca_pem,
        names,
        _list(data, "requestheader-username-headers") or _USER,
        _list(data, "requestheader-group-headers") or _GROUP,
        _list(data, "requestheader-extra-headers-prefix") or _EXTRA,
    )


def review_of(caller: Caller, path: str, asked: Asked | None) -> dict[str, Any]:
    """A SubjectAccessReview: may this caller have that?"""
    spec: dict[str, Any] = {
        "user": caller.name,
        "groups": list(caller.groups),
        "extra": {name: list(values) for name, values in caller.extra.items()},
    }
    if asked is None or not asked.metric:
        spec["nonResourceAttributes"] = {"path": path, "verb": "get"}
    elif asked.group == CUSTOM:
        spec["resourceAttributes"] = {
            "verb": "get",
            "group": asked.group,
            "version": asked.version,
            "namespace": asked.namespace,
            "resource": asked.resource,
            "name": asked.name,
            "subresource": asked.metric,
        }
    else:
        spec["resourceAttributes"] = {
            "verb": "list",
            "group": asked.group,
            "version": asked.version,
            "namespace": asked.namespace,
            "resource": asked.metric,
        }
    return {"apiVersion": "authorization.k8s.io/v1", "kind": "SubjectAccessReview", "spec": spec}


def _all(headers: Sequence[tuple[str, str]], names: Sequence[str]) -> list[str]:
    wanted = {name.lower() for name in names}
    return [value for name, value in headers if name.lower() in wanted]


def _list(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    try:
        return tuple(msgspec.json.decode(data.get(key) or "[]", type=list[str]))
    except msgspec.MsgspecError as error:
        raise ConfigError(f"ConfigMap kube-system/{CONFIG_MAP}: {key} is no list of names: {error}") from error
