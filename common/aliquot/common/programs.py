"""Our programs, behind one guard: where an extra is not installed, a sentence names it instead of a traceback."""

from __future__ import annotations

import importlib
import re
import sys

from aliquot.common.errors import ConfigError

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[(?P<extras>[^]]*)\])?[^;]*;\s*extra\s*==\s*['\"](?P<extra>[^'\"]+)"
)
"""One that an extra always brings; those with a further condition (a faster loop, say) may be missing."""


def missing(extra: str, of: str = "aliquot") -> list[str]:
    """The distributions that this extra of another brings and that are not installed, in order of their names."""
    from importlib import metadata  # noqa: PLC0415 - takes 2 MB, where nothing is missing for nothing

    found: set[str] = set()
    for line in metadata.requires(of) or ():
        match = _REQUIREMENT.match(line)
        if match is None or match["extra"] != extra:
            continue
        if match["name"] == of:  # an extra that is made of others
            found.update(name for other in match["extras"].split(",") for name in missing(other.strip(), of))
        elif not list(metadata.distributions(name=match["name"])):
            found.add(match["name"])
    return sorted(found)


def require(what: str, extra: str) -> None:
    """Raises `ConfigError` where `what` can't run because an extra is not installed."""
    lacking = missing(extra)
    if lacking:
        raise ConfigError(
            f"{what} needs aliquot[{extra}], of which {', '.join(lacking)} is not installed",
            hint=f"pip install 'aliquot[{extra}]'",
        )


def _run(program: str, extra: str, module: str) -> int:
    try:  # what it runs, too: a program loads some of what it needs when it knows its settings
        return int(importlib.import_module(module).main() or 0)
    except ImportError:
        try:
            require(program, extra)
        except ConfigError as error:
            sys.stderr.write(f"error: {error.explain()}\n")
            return 2
        raise


def agent() -> int:
    """`aliquot-agent`."""
    return _run("aliquot-agent", "agent", "aliquot.agent.main")


def coordinator() -> int:
    """`aliquot-coordinator`."""
    return _run("aliquot-coordinator", "coordinator", "aliquot.coordinator.main")


def console() -> int:
    """`aliquot-console`."""
    return _run("aliquot-console", "console", "aliquot.console.main")


def kube() -> int:
    """`aliquot-kube`."""
    return _run("aliquot-kube", "kubernetes", "aliquot.kube.program")


def kube_node() -> int:
    """`aliquot-kube-node`."""
    return _run("aliquot-kube-node", "kubernetes", "aliquot.kube.node.main")
