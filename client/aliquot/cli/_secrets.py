"""Secrets of this user's leases, so that `exec` can join them from another terminal.

One file per lease, readable only by its owner, below the state folder. `ALIQUOT_LEASE_SECRET` overrides it. A file
outlives its lease when somebody else ends it, so old files are removed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from aliquot.client import NotFound
from aliquot.client.local import state_folder
from aliquot.common.own_files import make_private, write_whole

VARIABLE = "ALIQUOT_LEASE_SECRET"
KEPT_S = 30 * 24 * 3600


def keep(lease_id: str, secret: str, env: Mapping[str, str] | None = None) -> None:
    """Save a secret."""
    folder = _folder(env)
    make_private(folder)
    _sweep(folder)
    write_whole(folder / lease_id, secret.encode(), durable=False)


def forget(lease_id: str, env: Mapping[str, str] | None = None) -> None:
    """Remove the secret of a lease that has ended."""
    (_folder(env) / lease_id).unlink(missing_ok=True)


def find(lease_id: str, env: Mapping[str, str] | None = None) -> str:
    """The secret of a lease. Raises `NotFound`."""
    environ = os.environ if env is None else env
    if stated := environ.get(VARIABLE):
        return stated
    try:
        return (_folder(env) / lease_id).read_text()
    except OSError:
        raise NotFound(
            f"this user has no secret of lease {lease_id}",
            hint=f"run this as the user who allocated it, or set {VARIABLE}",
            reason="SECRET_NOT_FOUND",
        ) from None


def _folder(env: Mapping[str, str] | None) -> Path:
    return state_folder(os.environ if env is None else env) / "secrets"


def _sweep(folder: Path) -> None:
    oldest = time.time() - KEPT_S
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            # Another command removed it first.
            continue
