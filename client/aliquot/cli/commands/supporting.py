"""`support-bundle`: one file with what others need to see what is wrong, and without what they must not have."""

from __future__ import annotations

import argparse
import dataclasses
import datetime as dt
import io
import json
import os
import platform
import sys
import tarfile
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping
from functools import partial
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Final

from aliquot.cli import _options as options
from aliquot.cli._command import Work
from aliquot.cli._json import dumps, plain
from aliquot.cli._out import Out
from aliquot.cli.localpool import Layout
from aliquot.cli.localpool.record import PoolRecord
from aliquot.client import AliquotError, LeaseState, Pool
from aliquot.common.https import open_directly
from aliquot.common.quantity import human_bytes
from aliquot.common.redacting import GONE, redacted
from aliquot.common.tokens import bearer

LEASES_MAX: Final = 2_000
TIMELINES_MAX: Final = 20
TAIL_BYTES_MAX: Final = 2 * 1024 * 1024
"""Of each log: its end."""
_METRICS_BYTES_MAX: Final = 32 * 1024 * 1024
_METRICS_TIMEOUT_S: Final = 10.0
_EPILOG = """What is in it: what the pool says of itself, its nodes, leases, incidents and tenants; metrics; the ends of
logs; settings; versions. Tokens, keys, passwords and leases' secrets are taken out, names are not: of tenants, nodes,
people. What could not be had is listed in missing.txt. Look through it before you send it."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = _EPILOG
    parser.add_argument("--out", type=Path, metavar="FILE", help="where to (default aliquot-support-TIME.tar.gz, here)")
    parser.add_argument(
        "--log", type=Path, action="append", default=[], metavar="FILE", help="also the end of this log"
    )
    parser.add_argument(
        "--config", type=Path, action="append", default=[], metavar="FILE", help="also these settings, without secrets"
    )
    parser.add_argument(
        "--metrics",
        action="append",
        default=[],
        metavar="URL",
        help="also metrics from there (http://host:port/metrics)",
    )
    parser.add_argument("--metrics-token-file", type=Path, metavar="FILE", help="what to show there")
    parser.add_argument("--lease", action="append", default=[], metavar="LEASE", help="also the timeline of this lease")
    parser.add_argument(
        "--state-dir", type=Path, metavar="DIR", help="of a pool that `aliquot up` runs on this machine"
    )


class Bundle:
    """Files in memory, each without secrets, and what is missing."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    def add(self, name: str, text: str, also: Collection[str] = ()) -> None:
        """One more file; values of these names are shown, too."""
        self.files[name] = redacted(text, also).encode()

    def have(self, name: str, text: Callable[[], str]) -> None:
        """One more file, or a line that says why there is none."""
        self._have(name, lambda: self.add(name, text()))

    def have_answer(self, name: str, ask: Callable[[], object]) -> None:
        """The same, of an answer of the pool's."""

        def add() -> None:
            answer = ask()
            shown = _without_secrets(plain(answer), set(_fields_in(answer)))
            self.files[name] = dumps(shown, indent=2).encode()

        self._have(name, add)

    def _have(self, name: str, add: Callable[[], None]) -> None:
        try:
            add()
        except AliquotError as error:
            self.missing.append(f"{name}: {error.message}")
        except (OSError, ValueError) as error:
            self.missing.append(f"{name}: {error}")

    def write(self, path: Path) -> None:
        """As a compressed archive that only this user reads."""
        self.add("missing.txt", "\n".join(self.missing) + "\n")
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
            for name, content in self.files.items():
                member = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
                member.size, member.mode = len(content), 0o600
                archive.addfile(member, io.BytesIO(content))


def _bundle(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    now = dt.datetime.now(tz=dt.UTC)
    path: Path = args.out or Path(f"aliquot-support-{now:%Y%m%d-%H%M%S}.tar.gz")
    bundle = Bundle()
    bundle.add("about.json", dumps(_about(now), indent=2))
    _ask(bundle, pool, args.lease)
    layout = Layout.of(args.state_dir)
    record = PoolRecord.read(layout)
    logs, addresses = list(args.log), list(args.metrics)
    if record is not None:
        logs += sorted(layout.logs.glob("*.log"))
        addresses += [record.metrics, *(node.metrics for node in record.nodes)]
    for number, url in enumerate(filter(None, addresses)):
        bundle.have(f"metrics/{number}.txt", partial(_metrics, url, args.metrics_token_file))
    for file in logs:
        bundle.have(f"logs/{file.name}", partial(_tail, file))
    for file in args.config:
        bundle.have(f"settings/{file.name}", partial(_tail, file))
    bundle.write(path)
    size = path.stat().st_size
    out.document({"file": str(path), "bytes": size, "files": sorted(bundle.files), "missing": bundle.missing})
    out.show(f"{path}: {len(bundle.files)} files, {human_bytes(size)}; secrets are taken out, names are not")
    for line in bundle.missing:
        out.note(f"missing: {redacted(line)}")


def _ask(bundle: Bundle, pool: Pool, lease_ids: list[str]) -> None:
    states = [state for state in LeaseState if state is not LeaseState.UNSPECIFIED]
    asked: dict[str, Callable[[], object]] = {
        "status": pool.status,
        "nodes": lambda: list(pool.nodes()),
        "leases": lambda: list(islice(pool.leases(states=states), LEASES_MAX)),
        "health": pool.admin.health,
        "tenancy": pool.admin.tenancy,
        "maintenance": pool.admin.maintenance,
        "set-aside": pool.admin.set_aside,
    }
    asked |= {f"timelines/{lease_id}": partial(pool.timeline, lease_id) for lease_id in lease_ids[:TIMELINES_MAX]}
    for name, ask in asked.items():
        bundle.have_answer(f"{name}.json", ask)


def _without_secrets(value: object, fields: Collection[str], field: str = "") -> object:
    """An answer value by value: what stands in one may look like an assignment, and the document must stay one."""
    if isinstance(value, Mapping):
        return {key: _without_secrets(each, fields, str(key)) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_secrets(each, fields, field) for each in value]
    if not isinstance(value, str):
        return value
    if field in fields:
        return redacted(value)
    shown = redacted(dumps({field: value}), fields)
    try:
        found = json.loads(shown)
    except ValueError:
        return GONE
    return found.get(field, GONE) if isinstance(found, dict) else GONE


def _fields_in(value: object) -> Iterator[str]:
    """Names of ours in an answer, whose values are what they say. Keys of labels are anybody's."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for each in value:
            yield from _fields_in(each)
    elif dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield field.name
            yield from _fields_in(getattr(value, field.name))


def _about(now: dt.datetime) -> dict[str, object]:
    """Of this machine and program: the environment's names are ours."""
    ours = {name: value for name, value in os.environ.items() if name.startswith("ALIQUOT_")}
    return {
        "time": now.isoformat(timespec="seconds"),
        "aliquot": metadata.version("aliquot"),
        "python": sys.version,
        "platform": platform.platform(),
        "environment": dict(sorted(ours.items())),
        "packages": sorted(f"{each.name} {each.version}" for each in metadata.distributions()),
    }


def _metrics(url: str, token_file: Path | None) -> str:
    request = urllib.request.Request(url)  # noqa: S310 - the caller's own, and only HTTP below
    if token_file is not None:
        request.add_header("Authorization", bearer(token_file.read_text().strip())[1])
    with open_directly(request, timeout_s=_METRICS_TIMEOUT_S) as answer:
        return bytes(answer.read(_METRICS_BYTES_MAX)).decode(errors="replace")


def _tail(path: Path) -> str:
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - TAIL_BYTES_MAX))
        text = file.read(TAIL_BYTES_MAX).decode(errors="replace")
    # Where it begins in the middle of a line, half a secret could stand there, which looks like none.
    return text.partition("\n")[2] if size > TAIL_BYTES_MAX else text


SUPPORT_BUNDLE = Work(_configure, options.on_pool(_bundle))
