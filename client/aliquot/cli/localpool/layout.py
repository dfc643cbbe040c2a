"""The files and folders of a local pool, below one folder."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from aliquot.client.local import ADMIN_SOCKET, ADMIN_TOKEN, LOCAL_POOL, state_folder
from aliquot.common.errors import ConfigError
from aliquot.common.own_files import make_private

SOCKET_PATH_MAX = 107
"""The longest path of a Unix socket, in bytes."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one local pool."""

    root: Path

    @classmethod
    def of(cls, stated: Path | None, env: Mapping[str, str] | None = None) -> Layout:
        """The folder that was asked for, else the user's own pool."""
        root = stated if stated is not None else state_folder(os.environ if env is None else env) / LOCAL_POOL
        return cls(root.expanduser().absolute())

    def make(self) -> None:
        """Create the folders, accessible only to this user."""
        for folder in (self.root, self.run, self.logs):
            make_private(folder)

    @property
    def run(self) -> Path:
        """Sockets."""
        return self.root / "run"

    @property
    def logs(self) -> Path:
        """The parts' logs."""
        return self.root / "logs"

    @property
    def record(self) -> Path:
        """The record of what runs now."""
        return self.root / "pool.json"

    @property
    def lock(self) -> Path:
        """The lock file, held by the process that runs the pool."""
        return self.root / "lock"

    @property
    def journal(self) -> Path:
        """The coordinator's journal."""
        return self.root / "coordinator.db"

    @property
    def access(self) -> Path:
        """The coordinator's own secrets."""
        return self.root / "access"

    @property
    def admin_token(self) -> Path:
        """The first administrator's token, which the coordinator makes."""
        return self.access / ADMIN_TOKEN

    @property
    def admin_socket(self) -> Path:
        """The coordinator's own socket: whoever gets in is administrator."""
        return self.access / ADMIN_SOCKET

    def node(self, name: str) -> Path:
        """An agent's state."""
        return self.root / "nodes" / name

    @property
    def authorities(self) -> Path:
        """Whom to trust at the coordinator, where it listens to other machines."""
        return self.access / "ca.pem"

    def scenario(self, name: str) -> Path:
        """A node's simulated GPUs."""
        return self.root / "nodes" / f"{name}.gpus"

    def socket(self, name: str) -> Path:
        """An agent's socket. Raises `ConfigError` if the path is too long."""
        path = self.run / f"{name}.sock"
        if len(os.fsencode(path)) > SOCKET_PATH_MAX:
            raise ConfigError(
                f"{path} is too long for a socket (at most {SOCKET_PATH_MAX} bytes)",
                hint="choose a shorter --state-dir",
            )
        return path
