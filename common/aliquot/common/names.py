"""Validates names and ids from outside; errors carry the field's path.

Ids and node names end up in file names, metric labels and tables, so they are ASCII without blanks. Free text may hold
anything printable.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from aliquot.common import limits
from aliquot.common.errors import InvalidFieldError

_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_SEGMENT: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(?:\.{_LABEL})*"

_TENANT_FORM: Final = "letters, digits and ._- , with / between levels: research/vision"
_POOL_FORM: Final = "letters, digits, - and _ , such as training"
_NODE_FORM: Final = "letters, digits, - and _ , in labels separated by dots: gpu-07.rack3"
_SLICE_FORM: Final = "letters, digits and ./_- , such as s-5n2k8wq0x3r7t"
_UUID_FORM: Final = "a UUID as the driver states it: GPU-… or MIG-…"
_KEY_FORM: Final = "visible ASCII characters, such as a UUID"

ID = re.compile(r"[a-z]-[0-9a-hjkmnp-tv-z]{13}")
SLICE_ID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9./_-]{0,126}[A-Za-z0-9])?")
POOL = re.compile(_LABEL)
NODE = re.compile(_SUBDOMAIN)
TENANT = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})*")
DEVICE_UUID = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._:/-]*[A-Za-z0-9])?")
IDEMPOTENCY_KEY = re.compile(r"[!-~]+")
LABEL_KEY = re.compile(rf"(?:{_SUBDOMAIN}/)?{_SEGMENT}")
LABEL_VALUE = re.compile(rf"(?:{_SEGMENT})?")
_JOINERS: Final = dict.fromkeys((0x200C, 0x200D))
"""Invisible by themselves, and part of how Persian and many emoji are spelt: they move nothing on a terminal."""


def validate_slice_id(value: str, field: str = "slice_id") -> str:
    """1..128 characters of letters, digits, `.`, `/`, `_`, `-`."""
    return _check(SLICE_ID, value, field, limits.MAX_NAME_CHARS, _SLICE_FORM)


def validate_tenant(value: str, field: str = "tenant") -> str:
    """Up to 128 characters: segments of letters, digits and `._-`, separated by `/`."""
    return _check(TENANT, value, field, limits.MAX_TENANT_CHARS, _TENANT_FORM)


def validate_queue(value: str, field: str = "queue") -> str:
    """The same form as a tenant."""
    return _check(TENANT, value, field, limits.MAX_TENANT_CHARS, _TENANT_FORM)


def validate_pool(value: str, field: str = "pool") -> str:
    """One DNS-like label of up to 63 characters."""
    return _check(POOL, value, field, limits.MAX_POOL_CHARS, _POOL_FORM)


def validate_node(value: str, field: str = "node_id") -> str:
    """A node's id or name: DNS-like labels of up to 63 characters, separated by dots, 253 in all."""
    return _check(NODE, value, field, limits.MAX_NODE_CHARS, _NODE_FORM)


def validate_device_uuid(value: str, field: str = "device_uuid") -> str:
    """Up to 128 characters, as drivers state them."""
    return _check(DEVICE_UUID, value, field, limits.MAX_DEVICE_UUID_CHARS, _UUID_FORM)


def validate_idempotency_key(value: str, field: str = "idempotency_key") -> str:
    """1..128 visible ASCII characters."""
    return _check(IDEMPOTENCY_KEY, value, field, limits.MAX_IDEMPOTENCY_KEY_CHARS, _KEY_FORM)


def validate_text(value: str, field: str, max_chars: int = limits.MAX_NAME_CHARS) -> str:
    """Text for people: printable, on one line, at most `max_chars` characters; may be empty."""
    _check_length(value, field, max_chars)
    if not value.translate(_JOINERS).isprintable():
        said = "contains control characters, invisible ones or line breaks"
        raise InvalidFieldError(field, said, hint="write what can be seen, on one line")
    return value


def plain_text(text: str, chars_max: int) -> str:
    """A text for people that is no longer than that, and moves no cursor where it is shown."""
    text = text[:chars_max]
    if text.translate(_JOINERS).isprintable():
        return text
    return "".join(char if char.isprintable() else " " for char in text)


def validate_labels(labels: Mapping[str, str], field: str = "labels") -> Mapping[str, str]:
    """At most 64 Kubernetes-like labels: key `[prefix/]name`, value empty or like a name, each part up to
    63.
    """
    if len(labels) > limits.MAX_LABELS:
        raise InvalidFieldError(field, f"{len(labels)} labels; at most {limits.MAX_LABELS} are allowed")
    for key, value in labels.items():
        path = f"{field}[{_shown(key)}]"
        prefix, _, name = key.rpartition("/")
        _check_length(prefix, path, limits.MAX_LABEL_PREFIX_CHARS)
        _check_length(name, path, limits.MAX_LABEL_CHARS)
        if not LABEL_KEY.fullmatch(key):
            raise InvalidFieldError(
                path, "is not a label key", hint="like a Kubernetes label: team or example.com/team"
            )
        _check_length(value, path, limits.MAX_LABEL_CHARS)
        if not LABEL_VALUE.fullmatch(value):
            raise InvalidFieldError(path, f"{_shown(value)} is not a label value", hint="letters, digits, ._- or empty")
    return labels


def _check(pattern: re.Pattern[str], value: str, field: str, max_chars: int, wanted: str) -> str:
    # The length first, so that patterns are matched against bounded text only.
    _check_length(value, field, max_chars)
    if not value:
        raise InvalidFieldError(field, "is empty", hint=f"write {wanted}")
    if not pattern.fullmatch(value):
        raise InvalidFieldError(field, f"{_shown(value)} is not allowed", hint=f"write {wanted}")
    return value


def _check_length(value: str, field: str, max_chars: int) -> None:
    if len(value) > max_chars:
        raise InvalidFieldError(field, f"{len(value)} characters; at most {max_chars} are allowed")


def _shown(value: str) -> str:
    return repr(value if len(value) <= 64 else value[:63] + "…")
