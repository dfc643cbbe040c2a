"""Policies of other distributions: classes named by entry points in the group `aliquot.policies`.

Found once, when the coordinator or `aliquot plan` starts; the core only ever sees the names in `POLICIES`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aliquot.common.errors import ConfigError
from aliquot.coordinator.core.placement import POLICIES, Policy
from aliquot.coordinator.core.placement.policies import BY_WORKLOAD

ENTRY_POINTS = "aliquot.policies"


def discover() -> list[str]:
    """Make every installed policy known; returns their names. Raises `ConfigError` for one that is none."""
    found: list[str] = []
    files = (file for folder in sys.path for file in Path(folder).glob("*-info/entry_points.txt"))
    if not any(f"[{ENTRY_POINTS}]" in file.read_text("utf-8", errors="replace") for file in files):
        return found
    from importlib import metadata  # noqa: PLC0415 - takes 2 MB, and most coordinators have no policy to find

    for entry in sorted(metadata.entry_points(group=ENTRY_POINTS), key=lambda entry: entry.name):
        register(entry.load(), entry.name)
        found.append(entry.name)
    return found


def require(name: str) -> None:
    """Raises `ConfigError` with the known names where there is no policy of that one."""
    if name not in POLICIES:
        raise ConfigError(f"no placement policy {name!r}", hint=f"one of {', '.join(sorted(POLICIES))}")


def register(policy: object, name: str) -> None:
    """Make one policy known under `name`. Raises `ConfigError` if it is no policy or the name is taken by another."""
    if not isinstance(policy, type) or not issubclass(policy, Policy):
        raise ConfigError(
            f"the policy {name!r} is no subclass of Policy", hint="see `docs/placement.md` for an example"
        )
    if policy.name != name:
        raise ConfigError(f"the policy {name!r} calls itself {policy.name!r}", hint="give both the same name")
    if name == BY_WORKLOAD or POLICIES.get(name, policy) is not policy:
        raise ConfigError(f"the policy {name!r} would hide another of that name", hint="choose another name")
    POLICIES[name] = policy
