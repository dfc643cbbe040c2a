"""Options that several commands share, and the pool and request made from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from aliquot.cli._out import Out
from aliquot.cli._parser import argument, seconds
from aliquot.cli._written import spelled
from aliquot.client import ClientTls, Pool, PoolError, Request, RetryPolicy, Serve, Tier, Topology
from aliquot.client._values.base import Word
from aliquot.common.quantity import parse_bytes, parse_milli
from aliquot.common.request_fields import REQUEST_FIELDS
from aliquot.common.stopping import STOP_SIGNALS, validate_stop_signal

W = TypeVar("W", bound=Word)
UNREACHABLE_S = 2.0
"""Longer than a restart takes, and short enough for a person who waits at a terminal."""


def open_pool(
    args: argparse.Namespace,
    addresses: Sequence[str] = (),
    *,
    token: str | None = None,
    ca: str = "",
    patient: bool = True,
) -> Pool:
    """The pool named by the options; or at these addresses, with this token and authority, asked only once."""
    return Pool(
        addresses or args.coordinator,
        timeout_s=args.timeout,
        retry=RetryPolicy(unreachable_s=UNREACHABLE_S, enabled=patient, tell=_teller(args)),
        token=token,
        token_file=args.token_file if token is None else None,
        tls=ClientTls(ca_pem=ca) if ca else None,
    )


def on_pool(
    act: Callable[[Pool, argparse.Namespace, Out], int | None],
) -> Callable[[argparse.Namespace, Out], int | None]:
    """What a command does, with the pool that its options name; it is closed when that is done."""

    def opened(args: argparse.Namespace, out: Out) -> int | None:
        with open_pool(args) as pool:
            return act(pool, args, out)

    return opened


_WORTH_TELLING = frozenset({"JOURNAL_UNAVAILABLE", "OVERLOADED", "ROLES_CHANGED"})


def _teller(args: argparse.Namespace) -> Callable[[PoolError, float], None]:
    """Says once of each reason why a call is sent again: a full disk is no secret for the length of a time-out."""
    out = Out.of(args)
    told: set[str] = set()

    def tell(error: PoolError, wait_s: float) -> None:
        if error.stated_reason in _WORTH_TELLING - told:
            told.add(error.stated_reason)
            out.note(f"{error.message}; trying again for up to {args.timeout:g} s")

    return tell


def request(parser: argparse.ArgumentParser, *, detached: bool = False) -> None:
    """Options that describe what is asked for."""
    group = parser.add_argument_group("what is asked for")
    parser.set_defaults(ttl_s=0)
    for field in REQUEST_FIELDS:
        if field.name == "ttl_s" and detached:
            continue  # it needs no keep-alive
        how, words = dict(_KINDS[field.kind]), _words_of(field.kind)
        if field.metavar:
            how["metavar"] = field.metavar
        names = [field.option, field.short] if field.short else [field.option]
        group.add_argument(*names, dest=field.name, help=field.help.format(words=words), **how)


def read_request(
    gpu: str, args: argparse.Namespace, *, node_ids: Sequence[str] | None = None, detached: bool = False
) -> Request:
    """The request that the options describe."""
    given: dict[str, Any] = {
        field.name: dict(found) if field.kind == "pairs" else tuple(found) if field.kind == "names" else found
        for field in REQUEST_FIELDS
        for found in (getattr(args, field.name),)
    }
    if node_ids is not None:
        given["node_ids"] = tuple(node_ids)
    return Request(gpu, **given, detached=detached)


def whole_seconds(text: str) -> int:
    """Parses whole seconds."""
    value = seconds(text)
    if value != int(value):
        raise argparse.ArgumentTypeError(f"{text}: whole seconds are needed")
    return int(value)


def positive(text: str) -> int:
    """Parses a whole number from 1."""
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Parses `key=value`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write KEY=VALUE")
    return key, value


def word(kind: type[W], what: str) -> Callable[[str], W]:
    """A parser of an enumeration's words."""

    def parse(text: str) -> W:
        try:
            return kind(text.upper().replace("-", "_"))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {what}; one of {_words(kind)}") from None

    return parse


def _words_of(kind: str) -> str:
    """The words that an option of this kind takes."""
    if kind == "signal":
        return ", ".join(STOP_SIGNALS)
    return _words(_ENUMERATIONS[kind]) if kind in _ENUMERATIONS else ""


def _words(kind: type[Word]) -> str:
    return ", ".join(spelled(each) for each in kind if each.name != "UNSPECIFIED")


_ENUMERATIONS: Mapping[str, type[Word]] = {"tier": Tier, "topology": Topology, "serve": Serve}
_KINDS: Mapping[str, Mapping[str, Any]] = {
    "text": {"default": ""},
    "flag": {"action": "store_true"},
    "integer": {"type": int, "default": 0},
    "count": {"type": positive, "default": 1, "metavar": "N"},
    "seconds": {"type": whole_seconds, "default": 0, "metavar": "TIME"},
    "bytes": {"type": argument(parse_bytes), "default": 0, "metavar": "BYTES"},
    "milli": {"type": argument(parse_milli), "default": 0, "metavar": "CPUS"},
    "pairs": {"action": "append", "type": pair, "default": [], "metavar": "KEY=VALUE"},
    "names": {"action": "append", "default": []},
    "tier": {"type": word(Tier, "a tier"), "default": Tier.UNSPECIFIED, "metavar": "TIER"},
    "topology": {"type": word(Topology, "a topology"), "default": Topology.UNSPECIFIED, "metavar": "WORD"},
    "serve": {"type": word(Serve, "a way to serve a lease"), "default": Serve.UNSPECIFIED, "metavar": "WORD"},
    "signal": {"type": argument(validate_stop_signal), "default": ""},
}
"""How the command line reads each kind of field of a request; `_written` has the other way."""
