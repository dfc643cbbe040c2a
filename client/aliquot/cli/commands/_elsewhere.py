"""Programs that run here and use a lease on another machine: what lets them is an entry point."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from aliquot.client import HeldLease
from aliquot.client._environment import handed_on
from aliquot.client._spawn import spawn
from aliquot.common.errors import ConfigError

ENTRY_POINTS = "aliquot.launchers"
"""Group of the entry points; `remote` names a `Launcher`."""

Launcher = Callable[[HeldLease], AbstractContextManager[Mapping[str, str]]]
"""Gives the variables by which a program finds the lease, while the block lasts."""


PROFILE_VARIABLE = "ALIQUOT_REMOTE_PROFILE"
"""Set to `table` or `json`, a program says on stderr at its end where its time went."""


def telling(launch: Launcher, more: Mapping[str, str]) -> Launcher:
    """A launcher whose programs have these variables too."""

    @contextmanager
    def launching(lease: HeldLease) -> Iterator[Mapping[str, str]]:
        with launch(lease) as variables:
            yield {**variables, **more}

    return launching


def launcher() -> Launcher:
    """The one that is installed. Raises `ConfigError`."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - most programs run on this machine

    for entry in entry_points(group=ENTRY_POINTS, name="remote"):
        try:
            loaded: Launcher = entry.load()
        except ImportError as error:
            raise ConfigError(
                f"`aliquot run --remote` can't be used: {error}", hint="pip install 'aliquot[remote]'"
            ) from error
        return loaded
    raise ConfigError("nothing is installed that `aliquot run --remote` could use", hint="install aliquot again")


def start(
    command: Sequence[str], variables: Mapping[str, str], started: Callable[[int], None]
) -> subprocess.Popen[Any]:
    """Start a program of this machine; `started` is called with its pid before it runs."""

    def admit(pid: int) -> Mapping[str, str]:
        started(pid)
        return variables

    return spawn(command, admit, handed_on(os.environ))
