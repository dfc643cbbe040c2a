"""What `aliquot run --remote` gives the program that it starts: a ticket, kept up to date while the program runs."""

from __future__ import annotations

import logging
import os
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from aliquot.client import HeldLease, PoolError
from aliquot.remote.native import LIBRARY
from aliquot.remote.ticket import VARIABLE, Ticket

log = logging.getLogger(__name__)

CUDA_VARIABLE = "ALIQUOT_REMOTE_CUDA"
STARTUP = Path(__file__).parent / "compat" / "startup"
"""What Python runs before the program, which then finds `cuda` where PyTorch is imported (decision 0054)."""
PROGRAMS = STARTUP.parent / "programs"
"""What stands in for `nvidia-smi`, by which scripts look for GPUs."""
LOOK_S = 2.0
"""How often the lease is looked at; at once when the pool says something of it."""


@contextmanager
def launching(lease: HeldLease) -> Iterator[Mapping[str, str]]:
    """The variables by which a program finds the lease (`aliquot.remote.connect`), good while the block lasts."""
    with tempfile.TemporaryDirectory(prefix="aliquot-remote-") as folder:  # only its user may enter it
        path = Path(folder) / "ticket.json"
        Ticket.of(lease.info).write(path)
        news, over = threading.Event(), threading.Event()
        before = lease.on_notice, lease.on_lost
        lease.on_notice = lambda _: news.set()
        lease.on_lost = lambda _: news.set()
        keeping = threading.Thread(target=_keep, args=(lease, path, news, over), name="ticket", daemon=True)
        keeping.start()
        try:
            yield {
                VARIABLE: str(path),
                "ALIQUOT_LEASE_ID": lease.lease_id,
                "ALIQUOT_TENANT": lease.info.tenant,
                **cuda_here(os.environ),
            }
        finally:
            over.set()
            news.set()
            keeping.join()
            lease.on_notice, lease.on_lost = before


def cuda_here(present: Mapping[str, str]) -> dict[str, str]:
    """The variables by which Python programs find `cuda` to be the lease, unless `ALIQUOT_REMOTE_CUDA=0` is stated."""
    if present.get(CUDA_VARIABLE, "1") != "1":
        return {}
    first = {"PYTHONPATH": STARTUP, "PATH": PROGRAMS, "LD_LIBRARY_PATH": LIBRARY.parent}
    behind = {"PATH": os.defpath, **present}
    return {CUDA_VARIABLE: "1"} | {
        name: os.pathsep.join([str(folder), *filter(None, behind.get(name, "").split(os.pathsep))])
        for name, folder in first.items()
    }


def _keep(lease: HeldLease, path: Path, news: threading.Event, over: threading.Event) -> None:
    while not over.is_set():
        news.wait(LOOK_S)
        news.clear()
        try:
            Ticket.of(lease.refresh()).write(path)
        except PoolError as error:
            log.info("the lease can't be looked at: %s", error.message)
        except OSError as error:
            log.warning("the ticket can't be written: %s", error)
