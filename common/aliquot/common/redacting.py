"""Takes out of text what is not known to be harmless, before it is sent to others: logs, settings, answers.

What is assigned to a name is shown where the name is known (`SHOWN`), or where the value can be no secret: a number, a
moment, `true`. Everything else goes, because nobody can list what people call their secrets. In prose, where nothing is
assigned, what looks like a secret goes: our own tokens, private keys, long words of random letters, passwords in
addresses. Rather too much goes than too little: a digest looks like a key.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Final
from urllib.parse import urlsplit

from aliquot.common.tokens import without_tokens

GONE: Final = "[redacted]"
SHOWN: Final = frozenset(
    """
    act action address addresses ahead aliquot at bound by cause cgroup change class cluster coordinator count created
    cuda device device_uuid devices direction driver driver_version error exit_code file gpu gpus group_name held_by
    host hostname id index kernel kind lease lease_id leader level lib listen log_level logger machine member message
    method metrics_host mode model models module name namespace node node_id node_name nodes outcome owner packages part
    parts peer phase pid place platform policy pool port ports principal priority problem python quantile queue queues
    ready reason replicas request request_id resource role role_arn scheme scope seq series service severity shape share
    signal size slice slice_id source state states status step target tenant tenants tier tiers time timezone title
    transport ts type uid unit units url use user uuid vendor version way what when where which why zone
    """.split()  # noqa: SIM905 - one word a line would fill a page
)
"""Names whose values are shown, in lower case with `_`; of a dotted name the last part counts."""
_TELLING: Final = (
    r"pass|pwd|secret|token|credential|cookie|invite|session|signature|salt|webhook|conninfo|dsn|authorization"
    r"|(?:api|access|account|private|signing|encryption|shared)[_-]?key|\bauth\b|\bcode\b|\bkey\b"
)
"""In names: their values are never shown."""
_NAME: Final = r"[A-Za-z_][A-Za-z0-9_.-]{0,511}"
_BEGINS: Final = r"(?<!\w)(?<!\w\.)"
"""Where a name may begin: not at each part of a dotted one, which would be read again from each on."""
_PLAIN_NAME: Final = r"[A-Za-z_][A-Za-z0-9_-]{0,127}"
_STRING: Final = r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'"""
_HARMLESS: Final = re.compile(
    r"""(?ix) true | false | yes | no | on | off | none | null | ~ | \{\} | [\[\]{}(|>+-]+
    | [-+]? \d{1,18} (?: \.\d{1,18} )? \s* (?: % | [KMGTPE]i?B? | [mun]?s | min | m | h | d )?
    | \d{4}-\d\d-\d\d (?: [T ] [\d:.]{5,15} (?: Z | [+-]\d\d:?\d\d )? )?"""
)
_SCHEMES: Final = frozenset({"http", "https", "grpc", "unix", "tcp", "file"})
_BLOCKS: Final = (
    # name = """…""", name: |, and lists over several lines.
    re.compile(
        rf'(?s)(?P<head>{_BEGINS}(?P<key>{_NAME})["\']?\s*[=:]\s*)(?P<value>"""(?:.*?"""|.*)|\'\'\'(?:.*?\'\'\'|.*))'
    ),
    re.compile(
        rf"(?m)^(?P<head>(?P<indent>[ \t]*)(?:- )?(?P<q>[\"']?)(?P<key>{_NAME})(?P=q):[ \t]*(?=[|>][+-]?\d?[ \t]*$))"
        r"(?P<value>[|>][^\n]*(?:\n(?:(?P=indent)[ \t]+[^\n]*|[ \t]*(?=\n)))*)"
    ),
    re.compile(
        rf"(?m)^(?P<head>(?P<indent>[ \t]*)(?:- )?(?P<q>[\"']?)(?P<key>{_NAME})(?P=q):[ \t]*)"
        r"(?P<value>(?:\n(?P=indent)[ \t]*-[ \t]+(?![\w\"'-]+:[ \t\n])[^\n]*)+)"
    ),
    re.compile(rf"""(?P<head>["']?{_BEGINS}(?P<key>{_NAME})["']?\s*[=:]\s*)(?P<value>\[[^\[\]{{}}]*\])"""),
)
_ASSIGNED: Final = (
    # A line of settings: all that follows is the value, blanks included.
    re.compile(
        rf"(?m)^(?P<head>[ \t]*(?:-[ \t]+|export[ \t]+)?(?P<q>[\"']?)(?P<key>{_PLAIN_NAME})(?P=q)"
        r"[ \t]*(?:=>?[ \t]*|:[ \t]+))"
        r"(?P<value>[^\s\[{|>][^\n]*?)(?=,?[ \t]*$)"
    ),
    re.compile(rf'(?P<head>"(?P<key>[^"\\\n]{{1,128}})"\s*:\s*)(?P<value>{_STRING})'),
    # {name: value, …} as YAML and Python write it.
    re.compile(
        rf"(?P<head>(?<=[{{,])\s*(?P<q>[\"']?)(?P<key>{_NAME})(?P=q)\s*:\s+)(?P<value>{_STRING}|[^\s,;{{}}\[\]\"']+)"
    ),
    re.compile(rf"(?P<head>(?<!\S)-(?P<key>p)[ \t]*)(?P<value>{_STRING}|(?!-)[^\s,;\"']+)"),
    re.compile(rf"(?P<head>(?<![\w.-])--(?P<key>[a-z][a-z0-9-]*)(?:=|[ \t]+))(?P<value>{_STRING}|(?!-)[^\s,;\"']+)"),
    re.compile(rf"(?P<head>(?<!-){_BEGINS}(?P<key>{_NAME})[ \t]*=>?[ \t]*)(?P<value>{_STRING}|[^\s,;&}}\])\"'>{{\[]+)"),
    # In prose a colon is most often but a colon.
    re.compile(
        rf"(?i)(?P<head>(?<![\w-])(?P<key>[\w-]{{0,64}}(?:{_TELLING})[\w-]{{0,64}})[\"']?(?:\s*:\s*|\s+is\s+))"
        rf"(?P<value>{_STRING}|[^\s,;\"'\[{{|>]+)"
    ),
    re.compile(
        rf"(?i)(?P<head>(?<![\w-])(?P<key>[\w-]{{0,64}}(?:{_TELLING})[\w-]{{0,64}})\s+)"
        r"(?P<value>(?=\S*[0-9])(?=\S*[a-z])[^\s,;:\"'\[]{6,})"
    ),
)
_MARKED: Final[tuple[tuple[re.Pattern[str], str], ...]] = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL), GONE),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*"), GONE),  # a session of an issuer
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{8,}"), rf"\1 {GONE}"),
    (re.compile(r"(?<![0-9a-fA-F-])[0-9a-fA-F]{40,}(?![0-9a-fA-F-])"), GONE),
    # Long words of base64, which have digits and capitals; names don't, as a rule.
    (
        re.compile(
            r"(?<![A-Za-z0-9+/_-])(?=[A-Za-z+/_-]*[0-9])(?=[a-z0-9+/_-]*[A-Z])[A-Za-z0-9+/_-]{43,}={0,2}(?![A-Za-z0-9])"
        ),
        GONE,
    ),
)
_URL: Final = re.compile(r"\b(?P<scheme>[A-Za-z][A-Za-z0-9+.-]{0,30})://[^\s\"'<>]+")
_OUR_PATHS: Final = re.compile(r"/?|/metrics|/api/v1(?:/[a-z:]{1,40})*|/healthz|/readyz|(?:/[a-z0-9_.-]{1,40}){1,8}")


def redacted(text: str, also: Collection[str] = ()) -> str:
    """The text without what is not known to be harmless. Values of the names in `also` are shown, too."""
    shown = SHOWN.union(also)

    def judged(found: re.Match[str]) -> str:
        return found[0] if _may_be_shown(found["key"], found["value"], shown) else f'{found["head"]}"{GONE}"'

    text = without_tokens(text)
    for pattern, instead in _MARKED:
        text = pattern.sub(instead, text)
    text = _URL.sub(_address, text)
    for pattern in (*_BLOCKS, *_ASSIGNED):
        text = pattern.sub(judged, text)
    return text


def _may_be_shown(key: str, value: str, shown: Collection[str]) -> bool:
    name = key.rpartition(".")[2].lower().replace("-", "_")
    bare = value.strip().rstrip(",").strip("\"'")
    if not bare or GONE in bare[: len(GONE) + 2] or name in shown or name.endswith(("error", "exception", "warning")):
        return True
    if name.endswith(("_file", "_dir", "_path")):
        return bare.startswith(("/", "~/", "./"))
    if re.search(_TELLING, name.replace("_", "-"), re.IGNORECASE):
        return bare.lower() in {"true", "false", "none", "null"}
    return _HARMLESS.fullmatch(bare) is not None


def _address(found: re.Match[str]) -> str:
    """Where something is, without who asks, and without a path that may be a secret, as those of notices are."""
    if found["scheme"].lower() not in _SCHEMES:
        return f"{found['scheme']}://{GONE}"
    try:
        parts = urlsplit(found[0])
        port = f":{parts.port}" if parts.port is not None else ""
    except ValueError:
        return f"{found['scheme']}://{GONE}"
    user = "…@" if "@" in parts.netloc else ""
    host = parts.hostname or ""
    path = parts.path.rstrip(".,;:)]}") if _OUR_PATHS.fullmatch(parts.path.rstrip(".,;:)]}")) else f"/{GONE}"
    rest = parts.path[len(path) :] if parts.path.startswith(path) else ""
    query = f"?{GONE}" if parts.query else ""
    fragment = f"#{GONE}" if parts.fragment else ""
    return f"{parts.scheme}://{user}{f'[{host}]' if ':' in host else host}{port}{path}{rest}{query}{fragment}"
