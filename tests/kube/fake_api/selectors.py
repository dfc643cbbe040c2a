"""Field and label selectors, as functions of an object."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Mapping[str, Any]], bool]
_SET = re.compile(r"(\S+)\s+(in|notin)\s+\(([^)]*)\)")
_SPLIT = re.compile(r",(?![^(]*\))")


def field_at(item: Mapping[str, Any], path: str) -> str:
    """The text at `spec.nodeName`; empty where there is none."""
    found: Any = item
    for name in path.split("."):
        found = found.get(name) if isinstance(found, Mapping) else None
        if found is None:
            return ""
    return str(found)


def fields(text: str) -> list[tuple[str, str, bool]]:
    """Pairs of a field selector: path, value, and whether they must be equal."""
    found = []
    for term in filter(None, text.split(",")):
        if "!=" in term:
            path, _, value = term.partition("!=")
            found.append((path.strip(), value.strip(), False))
        else:
            path, _, value = term.replace("==", "=").partition("=")
            found.append((path.strip(), value.strip(), True))
    return found


def _labels(item: Mapping[str, Any]) -> Mapping[str, str]:
    return (item.get("metadata") or {}).get("labels") or {}


def _label_test(term: str) -> Test:
    among = _SET.fullmatch(term)
    if among:
        name, how, values = among[1], among[2], {value.strip() for value in among[3].split(",")}
        if how == "in":
            return lambda item: _labels(item).get(name) in values
        return lambda item: _labels(item).get(name) not in values
    if "!=" in term:
        name, _, value = (part.strip() for part in term.partition("!="))
        return lambda item: _labels(item).get(name) != value
    if "=" in term:
        name, _, value = (part.strip() for part in term.replace("==", "=").partition("="))
        return lambda item: _labels(item).get(name) == value
    if term.startswith("!"):
        return lambda item: term[1:].strip() not in _labels(item)
    return lambda item: term in _labels(item)


def selector(field_text: str, label_text: str) -> Test:
    """Whether an object is chosen by both."""
    pairs = fields(field_text)
    tests = [_label_test(term.strip()) for term in _SPLIT.split(label_text) if term.strip()]

    def chosen(item: Mapping[str, Any]) -> bool:
        return all((field_at(item, path) == value) is equal for path, value, equal in pairs) and all(
            test(item) for test in tests
        )

    return chosen if pairs or tests else lambda item: True
