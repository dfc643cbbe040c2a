"""What one machine needs to reach a pool for the first time, in one string that can be copied and pasted.

    alq1.<base64url of JSON>    {"c": addresses, "ca": PEM of the pool's authorities, "t": a token, "n": a node}

`aliquot login` takes one with a person's token, `aliquot-agent join` one with an invite for a node. Whoever has it has
the token in it: it is as secret as that.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

import msgspec

from aliquot.common.errors import ConfigError
from aliquot.common.limits import ADDRESSES_MAX

PREFIX: Final = "alq1."
CHARS_MAX: Final = 64 * 1024


class _Content(msgspec.Struct, omit_defaults=True):
    """As it is in JSON. What later versions add is ignored."""

    c: list[str]
    t: str
    ca: str = ""
    n: str = ""


@dataclass(frozen=True, slots=True)
class ConnectionString:
    """See the module's docstring."""

    addresses: tuple[str, ...]
    token: str
    ca_pem: str = ""
    """Empty: no TLS on this machine's own addresses, the system's authorities on others."""
    node: str = ""
    """The node that the token invites; empty: it is no invite."""

    def __repr__(self) -> str:
        """Without the token, as it may end up in a log."""
        return f"ConnectionString({', '.join(self.addresses)}{' for ' + self.node if self.node else ''})"

    def encode(self) -> str:
        """As one word."""
        content = _Content(list(self.addresses), self.token, self.ca_pem, self.node)
        return PREFIX + base64.urlsafe_b64encode(msgspec.json.encode(content)).rstrip(b"=").decode()


def decode(text: str) -> ConnectionString:
    """Read one. White space, which terminals put where a line is long, does not count. Raises ConfigError."""
    text = "".join(text.split())
    if not text.startswith(PREFIX):
        raise ConfigError(f"this is no string to connect with: it begins with {PREFIX}", hint="copy it whole")
    if len(text) > CHARS_MAX:
        raise ConfigError(f"the string to connect with has more than {CHARS_MAX} characters")
    coded = text.removeprefix(PREFIX)
    try:
        raw = base64.b64decode(coded + "=" * (-len(coded) % 4), altchars=b"-_", validate=True)
        content = msgspec.json.decode(raw, type=_Content)
    except (binascii.Error, msgspec.DecodeError, UnicodeError, ValueError):
        # Nothing of it is repeated here: there is a secret in it. Nor is what was wrong, which may repeat it.
        raise ConfigError(
            "the string to connect with can't be read", hint="copy it whole, to its last character"
        ) from None
    if not content.c or len(content.c) > ADDRESSES_MAX or not all(content.c) or not content.t:
        raise ConfigError("the string to connect with has no address or no token in it", hint="ask for another")
    return ConnectionString(tuple(content.c), content.t, content.ca, content.n)
