"""Whose an APIService is: each has one owner, and where there are two the last one installed takes all questions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from aliquot.kube.core.scaling.metrics_documents import EXTERNAL, VERSIONS


@dataclass(frozen=True, slots=True)
class Registered:
    """What an APIService says. Without a service it is the API server's own, or a custom resource's."""

    name: str
    service: str = ""
    """`NAMESPACE/NAME`."""
    available: bool = False
    message: str = ""
    """Why it is not available."""
    there: bool = True

    def is_of(self, service: str) -> bool:
        """Whether it is this service's."""
        return self.there and self.service == service


def names_of(group: str) -> tuple[str, ...]:
    """The APIServices of a group."""
    return tuple(f"{version}.{group}" for version in VERSIONS[group])


def registered(name: str, document: Mapping[str, Any] | None) -> Registered:
    """From the object; None: there is none."""
    if document is None:
        return Registered(name, there=False)
    service = document["spec"].get("service") or {}
    conditions = (document.get("status") or {}).get("conditions") or ()
    available: Mapping[str, Any] = next((one for one in conditions if one["type"] == "Available"), {})
    whose = f"{service.get('namespace', '')}/{service.get('name', '')}" if service else ""
    return Registered(name, whose, available.get("status") == "True", str(available.get("message", "")))


def taken(found: Iterable[Registered], service: str) -> str:
    """What stands in the way of answering for these, with both names; empty: nothing."""
    others = [one for one in found if one.there and not one.is_of(service)]
    if not others:
        return ""
    said = "; ".join(f"APIService {one.name} is of {one.service or 'the API server itself'}" for one in others)
    return f"{said}, and we are {service}: an API has one owner"


def way_out(found: Iterable[Registered], service: str) -> str:
    """What to do about it."""
    others = [one for one in found if one.there and not one.is_of(service)]
    if any(one.name.endswith(EXTERNAL) for one in others):
        return (
            f"leave {EXTERNAL} to the other (scaling.external=false): where that is KEDA, a ScaledObject "
            "asks our scaler for the same figures"
        )
    return "uninstall the other, or leave that API out (scaling.custom=false) and scale by KEDA"
