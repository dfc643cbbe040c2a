"""A real pool for tests: a coordinator and agents as processes, on simulated GPUs, through the CLI's own local pool."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from aliquot.cli.localpool import Layout, LocalPool, PoolSetup

NOTHING_SERVED = {"ALIQUOT_AGENT_HOSTING_SERVICES": "none"}
"""Whatever is installed where the tests run."""


@contextmanager
def real_pool(
    nodes: int = 2,
    gpus: int = 2,
    tiers: str = "watchdog",
    settings: Mapping[str, str] | None = None,
    coordinator: str = "",
    before: Callable[[LocalPool], None] = lambda _: None,
    *,
    models: Sequence[str] = ("A100-40",),
) -> Iterator[LocalPool]:
    """Up and ready; stopped at the end. In a folder of its own with a short name, because of the sockets in it.
    `settings`: variables of its agents; `coordinator`: its coordinator's configuration file; `before`: what is done
    before anything starts; `models`: of the cards of each node, `gpus` times.
    """
    root = Path(tempfile.mkdtemp(prefix="aq-"))
    file = root / "settings.toml"
    file.write_text(coordinator)
    plan = PoolSetup(
        nodes=nodes,
        gpus=gpus,
        model=",".join(models),
        listen="127.0.0.1:0",
        metrics_port=0,
        agent_metrics_port=0,
        tiers=(tiers,),
        coordinator_options=("--config", str(file)) if coordinator else (),
        agent_variables=tuple((NOTHING_SERVED | dict(settings or {})).items()),
    )
    try:
        with LocalPool(Layout.of(root), plan) as pool:
            before(pool)
            pool.start()
            yield pool
    finally:
        _end_what_serves(root)
        shutil.rmtree(root, ignore_errors=True)


def _end_what_serves(root: Path) -> None:
    """What serves a lease outlives its agent, which would take it up again: here no agent comes any more."""
    for entry in Path("/proc").iterdir():
        with suppress(OSError):
            if entry.name.isdecimal() and (entry / "cwd").readlink().is_relative_to(root):
                os.kill(int(entry.name), signal.SIGKILL)
