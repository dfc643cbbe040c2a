"""The program: watches leases, tells of warnings, and says to the pool which of them have reached somebody."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import logging
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from aliquot.cli import _options as options
from aliquot.cli._command import Builtin, Work
from aliquot.cli._out import Out
from aliquot.cli.notify.control import findings, post
from aliquot.cli.notify.notices import Notice, Notices, Rule
from aliquot.cli.notify.rules import read_rules
from aliquot.cli.notify.sending import Deliver, Outcome, Sender
from aliquot.client import Lease, LeaseChanged, Pool, PoolError, Resynced
from aliquot.common.errors import ConfigError
from aliquot.common.own_files import write_whole

log = logging.getLogger(__name__)

BUDGETS_EVERY_S = 60.0


class Notifier:
    """What was told, to whom it goes, and where that is written down."""

    def __init__(
        self, pool: Pool, rules: Iterable[Rule], state: Path | None, deliver: Callable[[Rule], Deliver]
    ) -> None:
        """`deliver` makes what sends a rule's notices."""
        self._pool = pool
        self._state = state
        self._lock = threading.Lock()
        self._closed = threading.Event()
        rules = list(rules)
        self._notices = Notices(rules, _read(state))
        self._senders = {rule.name: Sender(deliver(rule), self._done) for rule in rules}

    def look(self, lease: Lease) -> None:
        """A lease has changed, or is there."""
        with self._lock:
            self._send(self._notices.of(lease))

    def look_at_budgets(self) -> None:
        """Nobody tells of them, so they are asked for."""
        try:
            tenants = self._pool.admin.tenancy().tenants
        except PoolError as error:
            log.warning("how much of their budgets tenants have used is not known: %s", error)
            return
        with self._lock:
            for tenant in tenants:
                self._send(self._notices.of_budget(tenant, time.time_ns() // 1_000_000))

    def follow_budgets(self, every_s: float = BUDGETS_EVERY_S) -> None:
        """Until it is closed."""
        while not self._closed.wait(every_s):
            self.look_at_budgets()

    def _send(self, found: Iterable[Notice]) -> None:
        for notice in found:
            if not self._senders[notice.rule.name].send(notice):
                self._notices.failed(notice)

    def close(self) -> None:
        """Tell what can be told at once."""
        self._closed.set()
        for sender in self._senders.values():
            sender.close()

    def _done(self, outcome: Outcome) -> None:
        notice = outcome.notice
        with self._lock:
            if not outcome.delivered:
                self._notices.failed(notice)
                return
            if self._state is not None:
                _write(self._state, self._notices.sent)
        # Programs are not people: nobody is ended because a program was told.
        if notice.rule.to and notice.lease is not None:
            try:
                self._pool.confirm_notice(notice.lease.lease_id, notice.number)
            except PoolError as error:
                log.warning("the pool does not know that %s was told: %s", notice.title, error)


def _deliverer(pool: Pool, rule: Rule) -> Deliver:
    """What sends a rule's notices. Raises `ConfigError`."""
    try:
        import apprise  # noqa: PLC0415 - of the extra: whoever imports all modules need not have it
    except ImportError as error:
        raise ConfigError(f"`aliquot notify` can't be used: {error}", hint="pip install 'aliquot[notify]'") from error
    # What is told, and the secrets in its address, go to that address alone.
    where = apprise.Apprise(asset=apprise.AppriseAsset(http_redirects=False))
    for number, url in enumerate(rule.to):
        if not where.add(url):
            raise ConfigError(f"rule {rule.name}: to[{number}] is no address that Apprise knows", hint="see its list")

    def deliver(notice: Notice) -> None:
        if rule.to and not where.notify(title=notice.title, body=notice.body):
            raise OSError("it was not taken")
        if rule.control and notice.lease is not None:
            for finding in findings(pool.get(notice.lease.lease_id), dt.datetime.now(dt.UTC)):
                post(rule.control, finding, rule.control_token)

    return deliver


def _read(state: Path | None) -> list[str]:
    if state is None or not state.exists():
        return []
    try:
        found = json.loads(state.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        log.warning("%s can't be read, so some may be told twice: %s", state, error)
        return []
    return [str(key) for key in found] if isinstance(found, list) else []


def _write(state: Path, sent: list[str]) -> None:
    try:
        write_whole(state, json.dumps(sent).encode())
    except OSError as error:
        log.warning("%s can't be written, so some may be told twice: %s", state, error)


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "It runs until it is ended. Its token needs the role manager or operator: it says to the pool which warnings\n"
        "have reached somebody, and nothing is ended before that."
    )
    parser.add_argument("--rules", "-f", type=Path, required=True, metavar="FILE", help="whom to tell of whose leases")
    parser.add_argument("--state", type=Path, metavar="FILE", help="where it writes down what it has told")
    parser.add_argument("--once", action="store_true", help="tell of what there is now, and end")


def _notify(pool: Pool, args: argparse.Namespace, out: Out) -> None:
    rules = read_rules(args.rules)
    notifier = Notifier(pool, rules, args.state, lambda rule: _deliverer(pool, rule))
    try:
        for lease in pool.leases():
            notifier.look(lease)
        notifier.look_at_budgets()
        if args.once:
            return
        threading.Thread(target=notifier.follow_budgets, name="budgets", daemon=True).start()
        out.note(f"{len(rules)} rules; leases and budgets are watched")
        for event in pool.watch():
            if isinstance(event, LeaseChanged):
                notifier.look(event.lease)
            elif isinstance(event, Resynced):
                for lease in event.leases:
                    notifier.look(lease)
    finally:
        notifier.close()


WORK = Work(_configure, options.on_pool(_notify))
NOTIFY = Builtin("notify", "tell people and programs of idle leases, and people of budgets", "notify.command:WORK")
