"""The parts of serving by themselves: what a process may say of itself, how often it is told, who is spared."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aliquot.agent.core.figures import ServedReport, rates
from aliquot.agent.core.model import Holder
from aliquot.agent.hosting import clients, measuring, processes
from aliquot.agent.hosting.asking import ask
from aliquot.agent.hosting.base import MAX_ENDPOINT_CHARS, MAX_PROBLEM_CHARS, SOCKET, Answer, valid_endpoint
from aliquot.agent.hosting.clients import LOOPBACK, own_address

HOLDER = Holder("l-1", 1, 0)


@asynccontextmanager
async def saying(folder: Path, text: bytes) -> AsyncIterator[None]:
    """A process that answers the one who asks so."""
    answered = asyncio.Event()

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            writer.write(text)
            writer.close()
            await writer.wait_closed()
        answered.set()

    os.mkdir(folder)  # noqa: PTH102 - of a folder of this test, at once
    async with await asyncio.start_unix_server(answer, folder / SOCKET):
        yield
        await answered.wait()


async def asked(tmp_path: Path, said: object) -> Answer | None:
    text = said if isinstance(said, bytes) else json.dumps(said).encode()
    async with saying(tmp_path / "member", text):
        return await ask(tmp_path / "member", lambda pid: pid == os.getpid())


async def test_what_is_not_known_or_no_count_is_left_out_of_what_a_process_says(tmp_path: Path) -> None:
    figures = {"sessions": 0, "ops_total": (1 << 63) - 1, "waits_total": -1, "memory_bytes": 1 << 63, "made_up": 5}
    answer = await asked(tmp_path, {"endpoint": "127.0.0.1:7", "figures": figures})
    assert answer == Answer("127.0.0.1:7", "", {"sessions": 0, "ops_total": (1 << 63) - 1})


async def test_a_problem_is_told_on_one_line_and_not_longer_than_people_read(tmp_path: Path) -> None:
    answer = await asked(tmp_path, {"problem": "a\nb" + "x" * 2000})
    assert answer is not None
    assert answer.problem.startswith("a\\nbx")
    assert len(answer.problem) == MAX_PROBLEM_CHARS


@pytest.mark.parametrize(
    "said",
    [b"", b"nonsense", b"[]", {"endpoint": 5}, {"endpoint": "a b"}, {"endpoint": "x" * (MAX_ENDPOINT_CHARS + 1)}],
)
async def test_what_is_no_answer_counts_as_none(tmp_path: Path, said: object) -> None:
    assert await asked(tmp_path, said) is None


@pytest.mark.parametrize(("size", "taken"), [(8 << 10, True), ((8 << 10) + 1, False), (64 << 10, False)])
async def test_an_answer_is_read_as_far_as_anybody_would_write_one(tmp_path: Path, size: int, taken: bool) -> None:
    text = b'{"endpoint": "127.0.0.1:7"' + b" " * (size - 27) + b"}"
    assert len(text) == size
    assert ((await asked(tmp_path, text)) is not None) is taken


async def test_a_long_endpoint_and_an_answer_still_starting(tmp_path: Path) -> None:
    longest = "x" * MAX_ENDPOINT_CHARS
    assert valid_endpoint(longest)
    assert await asked(tmp_path, {"endpoint": longest}) == Answer(longest)


async def test_somebody_else_on_the_socket_is_not_believed(tmp_path: Path) -> None:
    assert await ask(tmp_path / "nowhere", lambda _: True) is None
    async with saying(tmp_path / "member", b'{"endpoint": "127.0.0.1:7"}'):
        assert await ask(tmp_path / "member", lambda pid: pid != os.getpid()) is None


class Said:
    """A host that answers what it is told to, and a mailbox: both of one member."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.held = True
        self.answers: list[tuple[float, Mapping[str, int] | None]] = []
        self.told: list[tuple[float, ServedReport | None]] = []

    async def measure(self, _: Holder) -> Mapping[str, int] | None:
        if not self.answers:
            self.held = False
            return None
        took_s, answer = self.answers.pop(0)
        self.now_s += took_s
        return answer

    def serve(self, _: Holder, report: ServedReport | None) -> None:
        self.told.append((self.now_s, report))

    def rated(self, _: Holder) -> bool:
        last = next((report for _, report in reversed(self.told) if report is not None), None)
        return last is not None and any(last.rates.values())


async def measured(monkeypatch: pytest.MonkeyPatch, answers: list[tuple[float, Mapping[str, int] | None]]) -> Said:
    monkeypatch.setattr(measuring, "EVERY_S", 0)
    said = Said()
    said.answers = answers
    slices = [SimpleNamespace(slice_id=f"l-1.1.{number}") for number in (1, 0)]
    state: Any = SimpleNamespace(
        held=lambda _: said.held, running=lambda _: slices, book=SimpleNamespace(of_holder=lambda _: slices)
    )
    parts: Any = said
    asking = measuring.Measuring(state, parts, parts, lambda: said.now_s)
    asking.begin(HOLDER)
    asking.begin(HOLDER)  # again, while it is asked: nobody is asked twice
    (task,) = asking._tasks.values()
    await task
    assert said.told.pop() == (said.now_s, None), "it is not served any more"
    return said


async def test_the_first_count_is_told_at_once_and_the_next_after_five_seconds_if_it_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ops = "ops_total"
    said = await measured(
        monkeypatch, [(0, {ops: 5}), (4.5, {ops: 9}), (0.5, {ops: 15}), (5.0, {ops: 15}), (5.0, {ops: 15}), (5.0, None)]
    )
    assert [
        (at_s - 1000, report and report.figures[ops], report and report.rates.get(ops)) for at_s, report in said.told
    ] == [
        (0, 5, None),
        (5, 15, 2),
        (10, 15, 0),  # that nothing goes on any more is news, once
    ]
    assert {report.slice_id for _, report in said.told if report is not None} == {"l-1.1.0"}, (
        "the first of the member's"
    )


def test_sums_that_fell_are_another_process_s() -> None:
    assert rates({"ops_total": 10}, {"ops_total": 9}, 1.0) == {}
    assert rates({"ops_total": 10}, {"ops_total": 10}, 0.0) == {}
    assert rates({"ops_total": 10}, {"ops_total": 10, "up_bytes_total": 3}, 2.0) == {
        "ops_total": 0,
        "up_bytes_total": 2,
        "down_bytes_total": 0,
    }


@pytest.mark.parametrize(("own", "left"), [("-999", "0"), ("-1", "0"), ("0", "500"), ("200", "500")])
def test_only_an_agent_that_is_spared_makes_what_it_starts_ordinary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, left: str
) -> None:
    (tmp_path / "own").write_text(f"{own}\n")
    monkeypatch.setattr(processes, "_OWN_OOM_SCORE", tmp_path / "own")
    with subprocess.Popen(["sleep", "60"]) as child:
        score = Path(f"/proc/{child.pid}/oom_score_adj")
        score.write_text("500")
        processes._make_ordinary(child.pid)
        assert score.read_text().strip() == left
        child.kill()


def test_the_way_to_a_coordinator_is_where_clients_come() -> None:
    assert own_address([]) == LOOPBACK
    assert own_address(["unix:/run/x", "192.0.2.1:7070"]) == LOOPBACK
    assert own_address(["name.invalid:7070"]) == LOOPBACK
    assert own_address(["nonsense.invalid:x", "localhost:7070"]) == LOOPBACK


def test_where_no_way_is_found_to_a_coordinator_the_next_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "is_local_address", lambda _: False)
    assert own_address(["127.0.0.5:7070"]) == "127.0.0.1", "what this machine shows there"
    assert own_address(["nobody.invalid:1", "127.0.0.5:x"]) == "127.0.0.1"
    if socket.has_ipv6 and Path("/proc/net/if_inet6").exists():
        assert own_address(["nobody.invalid:1", "[::1]:7070"]) == "::1"
    assert own_address(["nobody.invalid:1"]) == LOOPBACK
