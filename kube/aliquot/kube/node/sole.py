"""One of us on a node: two would take each other's sockets away for ever, and tie each other's pods.

The kubelet's own folder is what is locked, as two installations share nothing else for certain. A lock of the folder
itself outlasts what a kubelet removes from it, and goes with whoever holds it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from aliquot.common.errors import AliquotError

HOLDER = "aliquot-kube-node.holder"
MAX_NAME_CHARS = 200


class SecondPart(AliquotError):
    """Another `aliquot-kube-node` serves this node's kubelet."""


@contextlib.contextmanager
def sole(folder: Path, node: str) -> Iterator[None]:
    """Be the only one at the kubelet's folder. Raises `SecondPart` and `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{node}: process {os.getpid()} of {socket.gethostname()}"
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise SecondPart(
                f"the kubelet of {folder} is served by aliquot-kube-node already ({_holder(folder)}), so this one "
                f"({name}) is refused",
                hint="stop one of them: a node has one installation of aliquot; the part that runs goes on",
            ) from error
        (folder / HOLDER).write_text(name, encoding="utf-8")
        yield
    finally:
        os.close(descriptor)


def _holder(folder: Path) -> str:
    try:
        return (folder / HOLDER).read_text(encoding="utf-8", errors="replace")[:MAX_NAME_CHARS]
    except OSError:
        return "it does not say who"
