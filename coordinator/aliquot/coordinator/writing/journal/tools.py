"""`aliquot journal`: look at a journal, check it, copy it, go back in it. Registered with the command line by an entry
point; nothing here talks to a coordinator, and nothing changes the journal that is named first.
"""

from __future__ import annotations

import argparse
import datetime as dt
import itertools
import json
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from aliquot.common.entry import Entry
from aliquot.coordinator.core.evolve.snapshot import state_hash, to_snapshot
from aliquot.coordinator.core.values.fact import Fact
from aliquot.coordinator.errors import JournalError
from aliquot.coordinator.writing.journal import copying
from aliquot.coordinator.writing.journal.base import Journal
from aliquot.coordinator.writing.journal.naming import named
from aliquot.coordinator.writing.journal.replay import Replay, replay
from aliquot.coordinator.writing.journal.sqlite import SqliteJournal, snapshot_folder_of

_EVERYTHING = 2**63 - 1


def _run(args: argparse.Namespace) -> int:
    code: int = args.journal_action(args)
    return code


def _configure(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)

    def add(name: str, action: Callable[[argparse.Namespace], int], text: str) -> argparse.ArgumentParser:
        sub = actions.add_parser(name, help=text, description=text[:1].upper() + text[1:] + ".")
        sub.set_defaults(journal_action=action)
        sub.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help="one JSON object")
        sub.add_argument("journal", help="sqlite:PATH, a path, a folder (its newest), or postgres:CONNINFO")
        return sub

    add("verify", verify, "check every record and snapshot, and replay all of it")
    sub = add("dump", dump, "print records for people or, with --json, one JSON object a fact")
    sub.add_argument("--after", type=int, default=0, metavar="SEQ", help="only facts after this number")
    sub.add_argument("--up-to", type=int, default=_EVERYTHING, metavar="SEQ", help="only facts up to this number")
    for name, action, text in (
        ("backup", backup, "copy it while it is in use"),
        ("restore", restore, "make a new journal of a backup, or of this one's past"),
        ("repair", repair, "make a new journal of what can be believed of a damaged one"),
    ):
        sub = add(name, action, text)
        sub.add_argument(
            "target", help="the new journal: sqlite:PATH, a path, or postgres:CONNINFO (an empty database)"
        )
        if name == "restore":
            until = sub.add_mutually_exclusive_group()
            until.add_argument("--up-to", type=int, metavar="SEQ", help="the last fact to keep (default: all)")
            until.add_argument("--until", type=_moment_ms, metavar="TIME", help="such as 2026-11-21T09:30:00Z")


def verify(args: argparse.Namespace) -> int:
    """0: all of it can be believed."""
    journal = copying.existing(args.journal)
    said: dict[str, object] = {"journal": args.journal}
    try:
        replayed = replay(journal)
        state = replayed.state
        said |= {
            "seq": state.seq,
            "facts_after_snapshot": replayed.facts,
            "snapshot_seq": replayed.snapshot_seq,
            "leases": len(state.leases),
            "nodes": len(state.nodes),
            "leader_epoch": state.leader_epoch,
            "state_hash": state_hash(state),
        }
        problem = _compare_snapshots(journal)
    except JournalError as error:
        problem = error.explain()
    finally:
        journal.close()
    said |= {"ok": problem is None}
    if problem is not None:
        said |= {"problem": problem}
    _print(args, said)
    return 0 if problem is None else 1


def _compare_snapshots(journal: Journal) -> str | None:
    """Each snapshot must be what the one before it and the facts in between give."""
    snapshots = sorted(journal.snapshots(), key=lambda stored: stored.snapshot.seq)
    for older, newer in itertools.pairwise(snapshots):
        reading = Replay(journal)
        reading.start_at(older)
        seq = newer.snapshot.seq
        reading.catch_up(lambda read, seq=seq: read.group.last_seq <= seq)  # type: ignore[misc]
        if reading.digest != newer.digest or to_snapshot(reading.state) != newer.snapshot:
            return f"the snapshot of fact {seq} is not what the facts up to there give"
    return None


def dump(args: argparse.Namespace) -> int:
    """Groups and facts, in words; or facts for other programs."""
    journal = copying.existing(args.journal)
    try:
        for stored in journal.groups(args.after):
            group = stored.group
            if group.first_seq > args.up_to:
                break
            if not args.json:
                sys.stdout.write(f"-- facts {group.first_seq} to {group.last_seq}, record {stored.digest.hex()[:12]}\n")
            for seq, fact in enumerate(group.facts, group.first_seq):
                if args.after < seq <= args.up_to:  # a group may begin before what was asked for, and end after it
                    sys.stdout.write((_for_programs if args.json else _for_people)(seq, fact) + "\n")
    finally:
        journal.close()
    return 0


def _for_people(seq: int, fact: Fact) -> str:
    fields = " ".join(f"{name}={getattr(fact, name)!r}" for name in fact.__struct_fields__ if name != "at_ms")
    return f"{seq:>9} {_moment(fact.at_ms)} {type(fact).__name__} {fields}"


def _for_programs(seq: int, fact: Fact) -> str:
    return json.dumps({"seq": seq, "fact": type(fact).__name__, **dict(_fields(fact))}, default=_plain)


def _fields(value: Any) -> Iterator[tuple[str, object]]:  # noqa: ANN401 - any struct of the core
    for name in value.__struct_fields__:
        yield name, _plain(getattr(value, name))


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever facts hold
    if isinstance(value, msgspec.Struct):
        return dict(_fields(value))
    if isinstance(value, (tuple, list, frozenset)):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, int) and hasattr(value, "name"):
        return value.name
    return value


def backup(args: argparse.Namespace) -> int:
    """An SQLite journal by SQLite's own means, all others record by record; then read all of the copy."""
    source = copying.existing(args.journal)
    try:
        target = named(args.target)
        if isinstance(source, SqliteJournal) and isinstance(target, SqliteJournal):
            with copying.whole(target) as part:
                source.back_up(part.path)
                # Afterwards: what was pruned meanwhile is in a snapshot by now, and the file is no younger than that.
                _copy_snapshots(snapshot_folder_of(source.path), snapshot_folder_of(part.path))
        else:
            copying.copy(source, args.target, lambda _seq, _at_ms: True)
    finally:
        source.close()
    args.journal = args.target
    code = verify(args)
    if code == 0 and isinstance(source, SqliteJournal):
        try:
            source.note_backup()
        except JournalError as error:
            sys.stderr.write(f"The backup is whole, but its coordinator does not hear of it: {error.message}\n")
    return code


def _copy_snapshots(source: Path, target: Path) -> None:
    if not source.is_dir():
        return
    target.mkdir(mode=0o700)
    for file in sorted(source.glob("*.snap")):
        try:
            shutil.copy2(file, target / file.name)
        except FileNotFoundError:  # replaced by a newer one just now
            continue


def restore(args: argparse.Namespace) -> int:
    """The past, as a new journal."""
    seq_max = _EVERYTHING if args.up_to is None else args.up_to
    at_ms_max = _EVERYTHING if args.until is None else args.until
    return _copied(args, lambda seq, at_ms: seq <= seq_max and at_ms <= at_ms_max, past_damage=False)


def repair(args: argparse.Namespace) -> int:
    """Everything up to the first record that can't be believed."""
    return _copied(args, lambda _seq, _at_ms: True, past_damage=True)


def _copied(args: argparse.Namespace, up_to: copying.UpTo, *, past_damage: bool) -> int:
    source = copying.existing(args.journal)
    try:
        copied = copying.copy(source, args.target, up_to, past_damage=past_damage)
    finally:
        source.close()
    said: dict[str, object] = {
        "journal": str(source.path) if isinstance(source, SqliteJournal) else args.journal,
        "target": args.target,
        "seq": copied.seq,
        "at": _moment(copied.at_ms),
        "facts": copied.facts,
        "snapshot_seq": copied.snapshot_seq,
    }
    if copied.stopped_by is not None:
        said["left_out"] = copied.stopped_by.message
    _print(args, said)
    return 0


def _print(args: argparse.Namespace, said: dict[str, object]) -> None:
    if args.json:
        sys.stdout.write(json.dumps(said) + "\n")
        return
    for key, value in said.items():
        sys.stdout.write(f"{key:22} {value}\n")


def _moment(at_ms: int) -> str:
    return dt.datetime.fromtimestamp(at_ms / 1000, dt.UTC).isoformat(timespec="milliseconds")


def _moment_ms(text: str) -> int:
    if re.fullmatch(r"\d{12,}", text):
        return int(text)
    try:
        moment = dt.datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no time; write 2026-11-21T09:30:00Z, or Unix ms") from None
    if moment.tzinfo is None:
        raise argparse.ArgumentTypeError(f"{text!r} names no time zone; add Z or +01:00")
    return int(moment.timestamp() * 1000)


JOURNAL = Entry(_configure, _run)
