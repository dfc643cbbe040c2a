"""Login strings: all that a machine needs to reach a pool, as one word to copy: where, whom to trust, and a token.

    alq1.<base64url, without padding, of {"c": [addresses], "ca": PEM, "t": token, "n": node}>

`ca` is absent where the system's authorities are meant, or where the pool is on this machine; `n` is there in what a
node joins with. The string holds a secret: it is shown once, and never repeated by an error.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import Final

import msgspec

from aliquot.common import tokens
from aliquot.common.errors import ConfigError

PREFIX: Final = "alq1."
CHARS_MAX: Final = 64 * 1024
ADDRESSES_MAX: Final = 16
_ADDRESS = re.compile(r"[!-~]{1,300}")
_NODE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,251}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class LoginString:
    """What a login string says."""

    addresses: tuple[str, ...]
    token: str = field(repr=False)
    ca: str = ""
    """PEM; empty: none travels along."""
    node: str = ""
    """The node that it was made for; empty: for people and services."""

    def encode(self) -> str:
        """The word to copy."""
        document = _Document(list(self.addresses), self.token, self.ca, self.node)
        return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(document)).decode().rstrip("=")


class _Document(msgspec.Struct, omit_defaults=True):
    c: list[str]
    t: str
    ca: str = ""
    n: str = ""


def is_login_string(text: str) -> bool:
    """Whether this looks like one."""
    return text.lstrip().startswith(PREFIX)


def read_login_string(text: str) -> LoginString:
    """Reads one; blanks and line breaks, which copying adds, are left out. Raises `ConfigError`."""
    if len(text) > CHARS_MAX:
        raise ConfigError(f"a login string has at most {CHARS_MAX} characters", hint=_HINT)
    word = "".join(text.split())
    if not word.startswith(PREFIX):
        raise ConfigError(f"a login string begins with {PREFIX}", hint=_HINT)
    encoded = word.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(encoded + "=" * (-len(encoded) % 4), altchars=b"-_", validate=True)
        said = msgspec.json.decode(raw, type=_Document)
    # What can't be read is not shown, nor why in the decoder's words: it may be most of a secret.
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        raise ConfigError("this login string is damaged", hint=_HINT) from None
    addresses = tuple(said.c)
    if not 1 <= len(addresses) <= ADDRESSES_MAX or not all(map(_ADDRESS.fullmatch, addresses)):
        raise ConfigError("this login string names no coordinator", hint=_HINT)
    if said.ca and "-----BEGIN CERTIFICATE-----" not in said.ca:
        raise ConfigError("the authority in this login string is no certificate", hint=_HINT)
    if said.n and not _NODE.fullmatch(said.n):
        raise ConfigError("the node in this login string is no name of a node", hint=_HINT)
    return LoginString(addresses, tokens.check_token(said.t, "this login string"), said.ca, said.n)


_HINT: Final = "copy all of it, or ask for another: `aliquot access token NAME` prints it"
