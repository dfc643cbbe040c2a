"""Which processes have a device's file open: all that can be known of who uses devices whose driver lists nobody."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from aliquot.agent.core.samples import ProcessList, ProcessSample


def processes_on(proc_root: Path, paths: Collection[str]) -> ProcessList:
    """Those with one of these files open, each once; their memory is not told. Not complete where some process could
    not be looked into.
    """
    found: list[ProcessSample] = []
    complete = True
    for process in proc_root.iterdir():
        if not process.name.isdigit():
            continue
        try:
            # Names change and vanish while one looks: a process that has ended uses nothing.
            if any(_target(link) in paths for link in list((process / "fd").iterdir())):
                found.append(ProcessSample(int(process.name), None))
        except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
            continue
        except PermissionError:
            complete = False
    return ProcessList(tuple(sorted(found, key=lambda each: each.pid)), complete)


def _target(link: Path) -> str:
    try:
        return str(link.readlink())
    except OSError:
        return ""
