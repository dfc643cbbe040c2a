"""Takes secrets out of text that is sent to others: logs, settings, answers.

What a secret looks like is known for our own (tokens, login strings, private keys, leases' secrets) and for what people
write into settings (`password = ...`, addresses with a password in them, conninfo of a database). Rather too much goes
than too little: a digest looks like a key.
"""

from __future__ import annotations

import re
from typing import Final

from aliquot.common.tokens import without_tokens

GONE: Final = "[redacted]"
_KEYS: Final = r"(?:passw(?:or)?d|secret|token|credentials?|(?:api|private)[_-]?key|authorization|invite)"
_RULES: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), GONE),  # a session of an issuer
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {GONE}"),
    (re.compile(r"\b([a-z][a-z0-9+.-]{0,30}://[^\s:/@]{1,256}):[^\s@]{1,256}@"), rf"\1:{GONE}@"),
    # key = "value", key: value, "key": "value", key=value; but not the name of a file that holds it.
    (
        re.compile(
            rf"""(?ix) ( {_KEYS} ["']? \s* [=:] \s* )
            (?! ["']? (?: /|\~|none\b|null\b|true\b|false\b|\[redacted\]) )
            ( "[^"\n]*" | '[^'\n]*' | [^\s,;}}\]]+ )"""
        ),
        rf'\1"{GONE}"',
    ),
    (re.compile(r"(?<![0-9a-fA-F-])[0-9a-fA-F]{40,}(?![0-9a-fA-F-])"), GONE),
    # Long words of base64, which have digits and capitals; names don't, as a rule.
    (
        re.compile(
            r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z+/_-]*[0-9])(?=[a-z0-9+/_-]*[A-Z])[A-Za-z0-9+/_-]{43,}={0,2}(?![A-Za-z0-9])"
        ),
        GONE,
    ),
)


def redacted(text: str) -> str:
    """The text without what looks like a secret."""
    text = without_tokens(text)
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
