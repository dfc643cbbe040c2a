"""`alloc`, `release` and `ack`: leases that outlive the command that asked for them."""

from __future__ import annotations

import argparse

from aliquot.cli import _options as options
from aliquot.cli import _secrets as secrets
from aliquot.cli import _views as views
from aliquot.cli import _words as words
from aliquot.cli._command import Work
from aliquot.cli._exits import Exit, exit_of
from aliquot.cli._foreground import end_as_interrupted
from aliquot.cli._nodes import with_node_ids
from aliquot.cli._out import Out
from aliquot.cli._parser import seconds
from aliquot.client import HeldLease, Lease, LeaseState, MemberPlace, Pool, PoolError, Request, WaitUntil


def _configure_alloc(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "The lease lives until it is released (or its --time-limit): it needs no keep-alive.\n"
        "With --hold it lives as long as this command.\n"
        "A request that is still queued after --wait stays in the queue, and the exit code is 5."
    )
    parser.add_argument("gpu", metavar="GPU", help="what is wanted: 0.25(A100),10Gi  2x0.5(A100|H100),20Gi  1g.10gb")
    parser.add_argument(
        "--until",
        type=options.word(WaitUntil, "a state to wait for"),
        default=WaitUntil.ACTIVE,
        metavar="STATE",
        help="wait until queued, granted or active (default)",
    )
    parser.add_argument("--wait", type=seconds, default=30.0, metavar="TIME", help="wait at most (30s)")
    parser.add_argument("--key", default="", help="idempotency key: the same key gives the same lease")
    parser.add_argument("--hold", action="store_true", help="keep it until Ctrl-C, then release it")
    parser.add_argument(
        "--on",
        action="append",
        type=_place,
        default=[],
        metavar="NODE[:UUID,...]",
        help="exactly there, once for each member, or refuse; it ends where it can't stay there "
        "(without UUIDs: on whichever devices of the node)",
    )
    options.request(parser, detached=True)


def _place(text: str) -> MemberPlace:
    node, _, uuids = text.partition(":")
    return MemberPlace(node, tuple(filter(None, uuids.split(","))))


def _alloc(pool: Pool, args: argparse.Namespace, out: Out) -> int:
    request = with_node_ids(pool, options.read_request(args.gpu, args, detached=not args.hold))
    if args.hold:
        _hold(out, pool, request, args)
        return Exit.OK
    lease = _allocated(pool, request, args)
    secrets.keep(lease.lease_id, lease.secret)
    _show(out, lease)
    if lease.state is LeaseState.ENDED:
        return Exit.LEASE_LOST
    return Exit.OK if args.until.reached_in(lease.state) else Exit.NOT_NOW


def _allocated(pool: Pool, request: Request, args: argparse.Namespace) -> Lease:
    if args.on:
        return pool.grant_on(request, args.on, until=args.until, wait_s=args.wait, key=args.key)
    return pool.allocate(request, until=args.until, wait_s=args.wait, key=args.key)


def _hold(out: Out, pool: Pool, request: Request, args: argparse.Namespace) -> None:
    """Hold the lease as long as this process lives; the end of the block releases it, whatever ends it."""
    end_as_interrupted()
    held: HeldLease | None = None
    try:
        with pool.lease(request, places=args.on or None, until=args.until, wait_s=args.wait, key=args.key) as held:
            secrets.keep(held.lease_id, held.info.secret)
            _show(out, held.info)
            out.note("held until Ctrl-C")
            while not held.lost.wait(3600):
                pass
    except KeyboardInterrupt:
        if held is None:
            raise
    finally:
        if held is not None:
            secrets.forget(held.lease_id)


def _show(out: Out, lease: Lease) -> None:
    out.document(lease)
    out.show(*views.lease_view(lease))


def _configure_release(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lease_ids", nargs="+", metavar="LEASE")
    parser.add_argument("--wait", action="store_true", help="until the capacity is free")
    parser.add_argument("--reason", default="", help="for people")


def _release(pool: Pool, args: argparse.Namespace, out: Out) -> int:
    results = [_release_one(pool, lease_id, args) for lease_id in args.lease_ids]
    failed = [result for result in results if isinstance(result, PoolError)]
    if len(failed) < len(results):
        out.document({"leases": [result for result in results if isinstance(result, Lease)]})
    for lease_id, result in zip(args.lease_ids, results, strict=True):
        if isinstance(result, PoolError):
            out.error(result)
            continue
        secrets.forget(lease_id)
        word = "has ended" if result.state is LeaseState.ENDED else "is ending"
        out.show(f"{lease_id} {word} ({(result.end_reason or 'released').lower()}), held {words.holding(result)}")
    return exit_of(failed[0]) if failed else Exit.OK


def _release_one(pool: Pool, lease_id: str, args: argparse.Namespace) -> Lease | PoolError:
    try:
        return pool.release(lease_id, wait_gone=args.wait, reason=args.reason)
    except PoolError as error:
        return error


def _configure_ack(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "An elastic lease (--min-slices, --max-slices) grows again only after its last change was acknowledged.\n"
        "Slices that it gives back run until their deadline, or until the change is acknowledged."
    )
    parser.add_argument("lease_id", metavar="LEASE")
    parser.add_argument(
        "--shape", type=int, default=0, metavar="N", help="shape that was adapted to (default: the present)"
    )


def _ack(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    shape = args.shape or pool.get(args.lease_id).shape
    _show(out, pool.acknowledge(args.lease_id, shape))


ALLOC = Work(_configure_alloc, options.on_pool(_alloc))
RELEASE = Work(_configure_release, options.on_pool(_release))
ACK = Work(_configure_ack, options.on_pool(_ack))
