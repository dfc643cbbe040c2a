"""The first administrator: made by the pool itself, so that nobody is let in for want of one.

Either a token was supplied from outside (a Kubernetes secret), and counts as an administrator's; or, where the pool has
no administrator yet, one is made and its token written where only the service and root can read it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from aliquot.common import tokens
from aliquot.common.errors import ConfigError
from aliquot.common.own_files import make_private, write_whole
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books.access import FIRST_ADMIN, SYSTEM, Actor, Token
from aliquot.coordinator.core.books.roles import Grant, Role
from aliquot.coordinator.reading.callers import DurableCallers
from aliquot.coordinator.writing.writer import Writer

log = logging.getLogger(__name__)

TOKEN_FILE = "admin.token"  # noqa: S105 - its name
_ADMIN = Grant(Role.ADMIN)


async def ensure_admin(
    writer: Writer,
    callers: DurableCallers,
    *,
    supplied: Path | None,
    folder: Callable[[], Path],
    entropy: Callable[[int], bytes],
) -> None:
    """See the module's docstring. Raises ConfigError."""
    if supplied is not None:
        text, note = _supplied(supplied), f"supplied by {supplied.name}"
    elif any(_ADMIN in principal.grants for principal in callers.principals.values()):
        return
    else:
        _, text = tokens.make_token(entropy(tokens.ENTROPY_BYTES))
        file, note = folder() / TOKEN_FILE, "of the first start"
        write_secret(file, text + "\n")
        log.info("the pool has its first administrator; the token is in %s", file)
    token_id = tokens.token_id_of(text)
    assert token_id is not None
    sha256 = tokens.token_sha256(text)
    known = callers.tokens.get(token_id)
    if known is not None and known.sha256 == sha256:
        return
    by = Actor(SYSTEM, action="FirstAdministrator")
    command = c.IssueToken(by, Token(token_id, sha256, FIRST_ADMIN, 0, 0, note), (_ADMIN,))
    await writer.submit(c.OnBehalf(by, f"{FIRST_ADMIN}: token {token_id}", command))


def _supplied(file: Path) -> str:
    try:
        text = file.read_text().strip()
    except OSError as error:
        raise ConfigError(
            f"{file}: {error.strerror}", hint="access.admin_token_file names a file to be read"
        ) from error
    if tokens.token_id_of(text) is None:
        raise ConfigError(
            f"{file} holds no token", hint="write alq_, 12 hexadecimal digits, _ and 64 random ones into it"
        )
    return text


def write_secret(file: Path, text: str) -> None:
    """Write a file that only its owner reads, whole or not at all. Raises ConfigError."""
    try:
        make_private(file.parent)
        write_whole(file, text.encode())
    except OSError as error:
        raise ConfigError(
            f"{file} can't be written: {error.strerror}", hint="name a folder of the service's own: access.dir"
        ) from error
