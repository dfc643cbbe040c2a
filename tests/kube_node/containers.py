"""Real containers, by a real OCI runtime, as containerd and CRI-O start them: a file system of their own, their pod's
cgroup, and what CDI descriptions say.

The runtime is Debian's `runc`, or `crun`. What no runtime here has are images: programs are those of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from aliquot.common.kernel_files import MOUNTINFO
from tests.agent.foreign_cgroups import hierarchy
from tests.agent.harness import ROOT
from tests.kube_node import cdi

RUNTIME = shutil.which("runc") or shutil.which("crun")
TRIVIAL_S = 60.0


@dataclass
class Container:
    """One that runs: its output is its program's."""

    id: str
    state: Path
    process: subprocess.Popen[bytes]

    def end(self) -> None:
        """Kill it and remove what the runtime keeps of it."""
        assert RUNTIME is not None
        subprocess.run(
            [RUNTIME, "--root", str(self.state), "delete", "--force", self.id], capture_output=True, check=False
        )
        self.process.wait(TRIVIAL_S)
        if self.process.stdout is not None:
            self.process.stdout.close()


@cache
def why_none() -> str:
    """Why no container can run here; empty: they can."""
    if RUNTIME is None:
        return "needs an OCI runtime: apt-get install runc"
    if os.geteuid() != 0:
        return "needs root to start containers"
    folder = Path("/tmp") / f"aliquot-trivial-{os.getpid()}"
    try:
        made = start(folder, "trivial", f"/aliquot-trivial-{os.getpid()}", ["true"], {}, [])
        said, _ = made.process.communicate(timeout=TRIVIAL_S)
        code = made.process.returncode
        made.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        remove_cgroups(f"/aliquot-trivial-{os.getpid()}")
    return "" if code == 0 else f"this machine runs no containers: {said.decode(errors='replace').strip()[-300:]}"


def require() -> None:
    """Skip where no container can run, with the reason."""
    if why_none():
        pytest.skip(why_none())


def start(
    folder: Path,
    name: str,
    cgroup: str,
    command: Sequence[str],
    environment: Mapping[str, str],
    edits: Sequence[dict[str, Any]],
    *,
    writable: Sequence[Path] = (),
    own_pids: bool = False,
) -> Container:
    """Start a container. `cgroup`: from the root of the hierarchy; `edits`: of CDI; `writable`: paths of this machine
    that it sees at the same place; `own_pids`: it has pids of its own, from 1 on, as pods have without `hostPID`.
    """
    assert RUNTIME is not None
    bundle = folder / name
    (bundle / "rootfs").mkdir(parents=True)
    config = _config(command, environment, cgroup, writable)
    if own_pids:
        config["linux"]["namespaces"].append({"type": "pid"})
    cdi.apply(edits, config)
    (bundle / "config.json").write_text(json.dumps(config), encoding="utf-8")
    state = folder / "state"
    process = subprocess.Popen(
        [RUNTIME, "--root", str(state), "run", "--bundle", str(bundle), name],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    return Container(name, state, process)


async def started(*arguments: Any, **more: Any) -> Container:
    """`start`, without blocking the event loop."""
    return await asyncio.to_thread(start, *arguments, **more)


def remove_cgroups(cgroup: str) -> None:
    """Remove a cgroup and those below from every hierarchy: where v1 is beside v2, runtimes use both."""
    for line in MOUNTINFO.read_text().splitlines():
        fields = line.split()
        if fields[fields.index("-") + 1] in ("cgroup", "cgroup2"):
            top = Path(fields[4]) / cgroup.lstrip("/")
            for each in sorted((top, *top.glob("**/")), reverse=True):
                with contextlib.suppress(OSError):
                    each.rmdir()


def _config(
    command: Sequence[str], environment: Mapping[str, str], cgroup: str, writable: Sequence[Path]
) -> dict[str, Any]:
    """What containerd makes of a pod's container, as far as it matters here. Pids are this machine's: the
    simulated driver knows processes by the pids that they see themselves, a real one by this machine's.
    """
    hierarchy()  # skips where there is none
    system = {Path(each) for each in ("/usr", "/bin", "/lib", "/lib64", "/etc")}
    own = {ROOT, Path(sys.prefix), Path(sys.base_prefix)}
    mounts: list[dict[str, Any]] = [
        {"destination": "/proc", "type": "proc", "source": "proc"},
        {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755"]},
        {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev", "mode=1777"]},
    ]
    for path, option in [*((each, "ro") for each in sorted(system | own)), *((each, "rw") for each in writable)]:
        if path.exists():
            options = ["rbind" if path.is_dir() else "bind", option]
            mounts.append({"destination": str(path), "type": "bind", "source": str(path), "options": options})
    return {
        "ociVersion": "1.0.2",
        "process": {
            "terminal": False,
            "user": {"uid": 0, "gid": 0},
            "args": list(command),
            "env": [f"{key}={text}" for key, text in {"PATH": "/usr/bin:/bin", **environment}.items()],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "rootfs"},
        "hostname": "container",
        "mounts": mounts,
        "linux": {
            "cgroupsPath": cgroup,
            "namespaces": [{"type": kind} for kind in ("mount", "ipc", "uts", "network")],
        },
    }
