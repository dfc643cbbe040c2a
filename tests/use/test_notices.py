"""Notices of idle leases: real addresses on this machine, a real pool; told once, until it works, and confirmed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from aliquot.cli.notify.notices import Notices, Rule
from aliquot.cli.notify.rules import read_rules
from aliquot.cli.notify.sending import Outcome, Sender
from aliquot.client import Lease, LeaseState, Unavailable, admin
from aliquot.client.use import LeaseUse, UseState
from aliquot.common.errors import ConfigError
from aliquot.common.utilisation import Utilisation, percent, score, status_of
from tests.use.real import QUICK, idle_pool, until


class Listener(ThreadingHTTPServer):
    """What is posted to it; as often as it is told to, it fails first."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self.failures = 0
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server: Listener

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        failing, self.server.failures = self.server.failures > 0, self.server.failures - 1
        if not failing:
            self.server.heard.append((self.path, body))
        self.send_response(503 if failing else 200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Silence."""


@contextmanager
def listening() -> Iterator[Listener]:
    with Listener() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def lease(tenant: str = "vision/a", warned: int = 1, since_ms: int = 5) -> Lease:
    use = LeaseUse(
        UseState.IDLE, since_ms, warned, 0, 0, "release", False, False, 0, "", "", None, None, None, None, ""
    )  # fmt: skip
    return Lease(
        lease_id="l-1", state=LeaseState.ACTIVE, gpu="1", tenant=tenant, queue="", pool="", name="demo", priority=0,
        gang_size=1, ttl_s=60, detached=False, labels={}, slices=(), lease_epoch=1, created_ms=1, granted_ms=1,
        active_ms=1, ended_ms=0, end_reason="", end_detail="", note="", requeues=0, seq=1,
        warnings=("idle for 60 minutes",), use=use,
    )  # fmt: skip


def test_each_warning_is_told_once_to_whom_it_concerns() -> None:
    notices = Notices([Rule("all", ("x",)), Rule("vision", ("x",), tenant="vision"), Rule("bio", ("x",), tenant="bio")])
    assert [notice.rule.name for notice in notices.of(lease())] == ["all", "vision"]
    assert notices.of(lease()) == []
    assert len(notices.of(lease(warned=2))) == 2
    assert len(notices.of(lease(since_ms=9))) == 2, "another spell"
    assert notices.of(lease(warned=0)) == []
    assert Notices([Rule("all", ("x",))], notices.sent).of(lease(warned=2)) == [], "also by one that starts again"


def test_a_budget_is_told_of_at_four_fifths_and_when_it_is_used_up_once_a_period() -> None:
    rules = [Rule("all", ("x",)), Rule("bio", ("x",), tenant="bio"), Rule("program", control="http://x")]
    notices = Notices(rules)

    def told(permille: int, now_ms: int = 0, period: str = "day") -> list[str]:
        spec = admin.TenantSpec("vision/robots", budget=admin.Budget(period, money_micro=1))
        seen = admin.TenantView(spec, 1, admin.AccountUse(), budget_permille=permille)
        return [f"{notice.rule.name}: {notice.title}" for notice in notices.of_budget(seen, now_ms)]

    assert told(799) == []
    assert told(801) == ["all: vision/robots has used 80.1 % of its budget of this day"]
    assert told(930) == []
    assert told(1004) == ["all: vision/robots has used 100.4 % of its budget of this day"]
    assert told(1200, 86_399_999) == []
    assert told(900, 86_400_000) == ["all: vision/robots has used 90 % of its budget of this day"], "the next day"
    assert (
        Notices(rules, notices.sent).of_budget(admin.TenantView(admin.TenantSpec("a"), 1, admin.AccountUse()), 0) == []
    )


def test_people_hear_of_a_budget_without_asking(tmp_path: Path) -> None:
    """Also those whose tenant holds nothing: the program that watches leases looks at budgets too, and tells once."""
    rules = tmp_path / "rules.yaml"
    with idle_pool(QUICK) as local, listening() as listener, local.connect() as pool:
        budget = admin.Budget("month", share_milli_ms=1)
        pool.admin.apply(admin.Declarations(tenants=(admin.TenantSpec("lab", budget=budget),)))
        pool.release(pool.allocate("0.5,1Gi", tenant="lab", detached=True).lease_id, wait_gone=True)
        until(lambda: any(t.budget_permille >= 1000 for t in pool.admin.tenancy().tenants))
        rules.write_text(f"rules: [{{name: lab, to: ['json://127.0.0.1:{listener.server_address[1]}/lab']}}]")
        command = [
            sys.executable,
            "-m",
            "aliquot.cli",
            "notify",
            "-f",
            str(rules),
            "--once",
            "--state",
            str(tmp_path / "s"),
        ]
        environment = {
            **os.environ, "ALIQUOT_COORDINATOR": local.address, "ALIQUOT_TOKEN_FILE": str(local.token_file),
        }  # fmt: skip
        for _ in range(2):
            subprocess.run(command, env=environment, check=True)
        ((path, body),) = listener.heard
        assert path == "/lab"
        assert body["title"].startswith("lab has used ")
        assert "nothing new is granted" in body["message"]


def test_what_can_not_be_told_is_told_again_and_others_are_not_held_up() -> None:
    done: list[Outcome] = []
    failures = [OSError("down"), Unavailable("the pool is down, too")]

    def deliver(notice: Any) -> None:
        if failures:
            raise failures.pop()

    sender = Sender(deliver, done.append, first_retry_s=0.01)
    notice = Notices([Rule("all", ("x",))]).of(lease())[0]
    assert sender.send(notice)
    until(lambda: done)
    assert done == [Outcome(notice, True)]
    sender.close()


def test_rules_say_what_is_wrong_with_them(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    for wrong in (
        "rules: []",
        "rules: [{name: a}]",
        "rules: [{name: a, to: [x], control: y}]",
        "rules: [{nam: a}]",
        "rules: [{name: a, control: reclaimer}]",
        "[",
    ):
        path.write_text(wrong)
        with pytest.raises(ConfigError):
            read_rules(path)
    token = tmp_path / "token"
    token.write_text("secret")
    path.write_text(f"rules: [{{name: a, control: 'http://elsewhere.example/', control_token_file: {token}}}]")
    with pytest.raises(ConfigError, match="no https://"):
        read_rules(path)
    path.write_text("rules: [{name: a, to: ['json://x'], tenant: t}, {name: b, control: 'http://x'}]")
    assert [rule.name for rule in read_rules(path)] == ["a", "b"]


def test_the_score_has_the_weights_and_names_that_dashboards_know() -> None:
    assert score(0, 0, percent(90, 100), percent(60, 600)) == 19.0  # a server that nobody asks
    assert status_of(19.0) is Utilisation.LOW
    assert [status_of(value) for value in (9.9, 10, 20, 70, 70.1)] == ["idle", "low", "normal", "normal", "high"]
    assert score(None, 0, 0, 1) is None
    assert score(40, 40, percent(1, None), None) == 40.0  # what is not told makes nobody idle
    assert status_of(None) is Utilisation.UNKNOWN


def test_nothing_is_ended_before_a_notifier_has_told_somebody(tmp_path: Path) -> None:
    rules = tmp_path / "rules.yaml"
    with idle_pool(QUICK) as local, listening() as listener, local.connect() as pool:
        policy = admin.IdlePolicy(action="release", after_s=3, warn_s=(2,))
        pool.admin.apply(admin.Declarations(queues=(admin.QueueSpec("default", idle=policy),)))
        held = pool.allocate("0.5,1Gi", detached=True)
        until(lambda: (use := pool.get(held.lease_id).use) is not None and use.warned)
        (row,) = pool.use(quiet_only=True).rows
        assert (row.lease.use.state, row.policy) == (UseState.HELD, "release")  # type: ignore[union-attr]
        address = f"127.0.0.1:{listener.server_address[1]}"
        rules.write_text(
            f"rules: [{{name: chat, to: ['json://{address}/chat']}}, {{name: r, control: 'http://{address}/control'}}]"
        )
        assert pool.get(held.lease_id).state is LeaseState.ACTIVE
        command = [sys.executable, "-m", "aliquot.cli", "notify", "-f", str(rules), "--state", str(tmp_path / "sent")]
        environment = {
            **os.environ, "ALIQUOT_COORDINATOR": local.address, "ALIQUOT_TOKEN_FILE": str(local.token_file),
        }  # fmt: skip
        process = subprocess.Popen(command, env=environment)
        try:
            until(lambda: pool.get(held.lease_id).state is LeaseState.ENDED)
        finally:
            process.terminate()
            process.wait()
        assert pool.get(held.lease_id).end_reason == "IDLE"
        heard = dict(listener.heard)
        assert heard["/chat"]["title"] == f"{held.lease_id} of default is held"
        finding = heard["/control"]
        assert finding.keys() >= {"gpu_id", "pod", "namespace", "hostname", "score", "status", "timestamp"}
        assert (finding["namespace"], finding["status"]) == ("default", "idle")
