"""Options that several commands share, and the pool and request made from them."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from aliquot.cli._out import Out
from aliquot.client import ClientTls, Pool, PoolError, Request, RetryPolicy, Serve, Tier, Topology
from aliquot.common.duration import parse_duration_ms
from aliquot.common.errors import AliquotError
from aliquot.common.quantity import parse_bytes, parse_milli
from aliquot.common.stopping import STOP_SIGNALS, validate_stop_signal

CALL_TIMEOUT_S = 10.0
UNREACHABLE_S = 2.0
"""Longer than a restart takes, and short enough for a person who waits at a terminal."""
_UNSET = argparse.SUPPRESS


def common(parser: argparse.ArgumentParser, *, top: bool = False) -> None:
    """Options of every command, before or after its name."""
    group = parser.add_argument_group("common options")
    group.add_argument(
        "--coordinator",
        "-c",
        metavar="ADDRESS",
        default=None if top else _UNSET,
        help="host:port of the coordinator, several separated by commas "
        "(ALIQUOT_COORDINATOR, else the configuration file, else localhost:7070)",
    )
    group.add_argument(
        "--token-file",
        type=Path,
        metavar="FILE",
        default=None if top else _UNSET,
        help="a file with the token to show (ALIQUOT_TOKEN_FILE, ALIQUOT_TOKEN, else what `aliquot login` has kept)",
    )
    group.add_argument(
        "--json", action="store_true", default=False if top else _UNSET, help="JSON on stdout, errors as JSON on stderr"
    )
    group.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        default=CALL_TIMEOUT_S if top else _UNSET,
        help="how long a call may take, retries included (default 10s)",
    )
    group.add_argument(
        "--verbose", "-v", action="store_true", default=False if top else _UNSET, help="say what is retried and why"
    )


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


def _teller(args: argparse.Namespace) -> Callable[[PoolError, float], None]:
    """Says once of each reason why a call is sent again: a full disk is no secret for the length of a time-out."""
    out = Out.of(args)
    told: set[str] = set()

    def tell(error: PoolError, wait_s: float) -> None:
        if error.stated_reason and error.stated_reason not in told:
            told.add(error.stated_reason)
            out.note(f"{error.message}; trying again for up to {args.timeout:g} s")

    return tell


def request(parser: argparse.ArgumentParser, *, detached: bool = False) -> None:
    """Options that describe what is asked for."""
    group = parser.add_argument_group("what is asked for")
    group.add_argument("--tenant", "-t", default="", help="who pays (ALIQUOT_TENANT)")
    group.add_argument("--queue", "-q", default="", help="where to wait (default: the tenant's)")
    group.add_argument("--pool", default="", help="a named set of devices (default: any)")
    group.add_argument("--priority", "-p", type=int, default=0, help="-1000..1000, higher first")
    group.add_argument("--name", default="", help="for people")
    group.add_argument("--label", action="append", type=pair, default=[], metavar="KEY=VALUE", help="for people")
    group.add_argument("--gang", type=positive, default=1, metavar="N", help="members, placed all or nothing")
    group.add_argument("--min-slices", type=int, default=0, metavar="N", help="elastic: keeps at least N")
    group.add_argument("--max-slices", type=int, default=0, metavar="N", help="elastic: grows up to N while idle")
    group.add_argument("--cpu", type=milli, default=0, metavar="CPUS", help="per member: 4, 500m")
    group.add_argument("--memory", type=size, default=0, metavar="BYTES", help="host memory per member: 16Gi")
    group.add_argument(
        "--min-tier", type=tier, default=Tier.UNSPECIFIED, metavar="TIER", help=f"at least: {_words(Tier)}"
    )
    group.add_argument("--or-mig", action="store_true", help="of a part of a card: a MIG instance will do as well")
    group.add_argument("--node", action="append", default=[], metavar="NODE", help="only on these nodes (id or name)")
    group.add_argument("--avoid-node", action="append", default=[], metavar="NODE", help="not on these")
    group.add_argument("--selector", action="append", type=pair, default=[], metavar="KEY=VALUE", help="node labels")
    group.add_argument(
        "--topology",
        type=topology,
        default=Topology.UNSPECIFIED,
        metavar="WORD",
        help=f"between the devices of a member: {_words(Topology)}",
    )
    group.add_argument("--affinity-group", default="", metavar="NAME", help="leases counted together by the next two")
    group.add_argument("--max-per-node", type=int, default=0, metavar="N", help="members of the affinity group")
    group.add_argument("--spread-domains", action="store_true", help="prefer domains with few of the group")
    group.add_argument("--time-limit", type=whole_seconds, default=0, metavar="TIME", help="end it after: 2h")
    group.add_argument("--min-run", type=whole_seconds, default=0, metavar="TIME", help="not preempted before")
    group.add_argument("--grace", type=whole_seconds, default=0, metavar="TIME", help="stop signal to SIGKILL (30s)")
    group.add_argument(
        "--stop-signal",
        type=stop_signal,
        default="",
        metavar="NAME",
        help=f"by which its programs are told to end: {', '.join(STOP_SIGNALS)} (default: TERM)",
    )
    group.add_argument(
        "--serve",
        type=serve,
        default=Serve.UNSPECIFIED,
        metavar="WORD",
        help=f"where its programs run: {_words(Serve)}; remote ones are told an endpoint",
    )
    group.add_argument("--preemptible", action="store_true", help="may be taken back")
    group.add_argument("--movable", action="store_true", help="may be moved to another device")
    group.add_argument(
        "--opportunistic", action="store_true", help="may use what idle leases do not, and goes when they do"
    )
    group.add_argument("--no-queue", action="store_true", help="refuse instead of waiting in the queue")
    parser.set_defaults(ttl=0)
    if not detached:
        group.add_argument("--ttl", type=whole_seconds, default=0, metavar="TIME", help="kept alive within (60s)")


def read_request(
    gpu: str, args: argparse.Namespace, *, node_ids: Sequence[str] | None = None, detached: bool = False
) -> Request:
    """The request that the options describe."""
    return Request(
        gpu=gpu,
        tenant=args.tenant,
        queue=args.queue,
        pool=args.pool,
        priority=args.priority,
        name=args.name,
        labels=dict(args.label),
        gang_size=args.gang,
        min_count=args.min_slices,
        max_count=args.max_slices,
        cpu_milli=args.cpu,
        host_memory_bytes=args.memory,
        min_tier=args.min_tier,
        node_ids=tuple(args.node if node_ids is None else node_ids),
        avoid_node_ids=tuple(args.avoid_node),
        node_selector=dict(args.selector),
        topology=args.topology,
        affinity_group=args.affinity_group,
        max_per_node=args.max_per_node,
        spread_domains=args.spread_domains,
        time_limit_s=args.time_limit,
        min_run_s=args.min_run,
        grace_s=args.grace,
        preemptible=args.preemptible,
        movable=args.movable,
        opportunistic=args.opportunistic,
        or_mig=args.or_mig,
        no_queue=args.no_queue,
        serve=args.serve,
        stop_signal=args.stop_signal,
        ttl_s=0 if detached else args.ttl,
        detached=detached,
    )


def seconds(text: str) -> float:
    """Parses `10s`, `500ms`, `2h`; a bare number is seconds."""
    try:
        return float(text) if text.replace(".", "", 1).isdigit() else parse_duration_ms(text) / 1000
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


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


def size(text: str) -> int:
    """Parses bytes: `16Gi`."""
    try:
        return parse_bytes(text)
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


def milli(text: str) -> int:
    """Parses thousandths: `4`, `500m`."""
    try:
        return parse_milli(text)
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


def pair(text: str) -> tuple[str, str]:
    """Parses `key=value`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"{text!r}: write KEY=VALUE")
    return key, value


def tier(text: str) -> Tier:
    """Parses a tier's word."""
    try:
        return Tier(text.upper())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a tier; one of {_words(Tier)}") from None


def topology(text: str) -> Topology:
    """Parses a topology's word."""
    try:
        return Topology(text.upper().replace("-", "_"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a topology; one of {_words(Topology)}") from None


def serve(text: str) -> Serve:
    """Parses a way to serve a lease."""
    try:
        return Serve(text.upper())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a way to serve a lease; one of {_words(Serve)}") from None


def stop_signal(text: str) -> str:
    """Parses the name of a signal that tells programs to end."""
    try:
        return validate_stop_signal(text)
    except AliquotError as error:
        raise argparse.ArgumentTypeError(error.explain()) from error


def _words(kind: type[Tier | Topology | Serve]) -> str:
    return ", ".join(word.lower().replace("_", "-") for word in kind if word.name != "UNSPECIFIED")
