"""What becomes of a process that serves a member: started once, ended where it can't serve, and left alone where the
coordinator does not name the member's slices. Real processes; what they say of themselves is scripted.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aliquot.agent.core.model import Holder, Intent, ProcessKey, Reservation, SliceSpec
from aliquot.agent.hosting import processes as hosting
from aliquot.agent.hosting.base import Answer, HostError
from aliquot.agent.processes import proc
from aliquot.agent.processes.signals import Target
from aliquot.agent.settings import HostingSettings
from aliquot.agent.state import NodeState

HOLDER = Holder("l-1", 1, 0)
SERVES = Answer("127.0.0.1:7", figures={"sessions": 2})


class Member:
    """One member on a node, with the parts of the agent that its process meets."""

    def __init__(self, folder: Path) -> None:
        self.state = NodeState("node", "node", "boot")
        self.record = Reservation(SliceSpec("l-1.1.0", "l-1", 1, "GPU-a", 250, 1, grace_ms=0))
        self.state.book.put(self.record)
        self.says: list[Answer | None] = []
        """What its process answers, the last for ever."""
        self.started: list[ProcessKey] = []
        self.forgotten: list[Holder] = []
        parts: Any = self
        self.containment, self.processes = parts, proc
        self.host = hosting.ProcessHost(
            state=self.state,
            attacher=parts,
            signaller=parts,
            directory=folder,
            settings=HostingSettings(user=str(os.geteuid()), ahead=False),
        )

    async def ask(self, _: Path, belongs: Any) -> Answer | None:
        assert belongs(os.getpid())
        return self.says.pop(0) if len(self.says) > 1 else self.says[0]

    @property
    def alive(self) -> list[ProcessKey]:
        return [process for process in self.started if proc.alive(process)]

    def become(self, **changed: Any) -> None:
        self.record = replace(self.record, **changed)
        self.state.book.put(self.record)

    # What the host asks of others.

    def environment(self, *_: object) -> tuple[dict[str, str], object]:
        return {}, None

    def attach(self, process: ProcessKey, holder: Holder, owner: int, *, hosted: bool) -> None:
        assert (holder, owner, hosted) == (HOLDER, os.geteuid(), True)
        self.started.append(process)

    def forget_hosted(self, holder: Holder) -> None:
        self.forgotten.append(holder)

    def belongs(self, _: int, holder: Holder) -> bool:
        return holder == HOLDER

    def service_of(self, holder: Holder) -> list[ProcessKey]:
        assert holder == HOLDER
        return self.alive

    def send(self, target: Target, what: signal.Signals) -> None:
        assert target.why
        os.kill(target.process.pid, what)


@pytest.fixture
def member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Member]:
    async def installed(_: str) -> list[str]:
        return ["echo"]

    monkeypatch.setattr(hosting, "apart", installed)
    monkeypatch.setattr(hosting, "_command", lambda *_: ["sleep", "600"])
    made = Member(tmp_path)
    monkeypatch.setattr(hosting, "ask", made.ask)
    asyncio.run(made.host.sweep())
    yield made
    for child in made.host._children.values():
        child.kill()
        child.wait()


def kept(folder: Path) -> list[Path]:
    """The folders of members."""
    return list(folder.iterdir())


async def test_it_is_started_once_and_found_again(member: Member) -> None:
    member.says = [None, None, Answer(), SERVES]
    assert await member.host.start(HOLDER, "echo") == SERVES.endpoint
    assert await member.host.start(HOLDER, "echo") == SERVES.endpoint
    member.says = [None, SERVES]  # busy for a moment
    assert await member.host.start(HOLDER, "echo") == SERVES.endpoint
    assert len(member.started) == len(member.alive) == 1
    assert member.forgotten == [HOLDER], "what an earlier agent may have left, before the first start alone"


async def test_one_that_does_not_answer_makes_way_for_another(member: Member) -> None:
    member.says = [None, SERVES]
    await member.host.start(HOLDER, "echo")
    member.says = [None, None, SERVES]
    await member.host.start(HOLDER, "echo")
    first, second = member.started
    assert member.alive == [second]
    assert member.forgotten == [HOLDER] * 2, "before each start"
    assert first != second


async def test_one_that_says_why_it_can_not_serve_is_ended(member: Member) -> None:
    member.says = [None, Answer(), Answer(problem="no framework")]
    with pytest.raises(HostError, match="echo: no framework"):
        await member.host.start(HOLDER, "echo")
    assert len(member.started) == 1
    assert not member.alive
    assert member.forgotten == [HOLDER] * 2


async def test_one_that_ends_by_itself_is_told_with_how(member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    for command, how in ((["false"], "with exit code 1"), (["sh", "-c", "kill -9 $$"], "by SIGKILL")):
        monkeypatch.setattr(hosting, "_command", lambda *_, command=command: command)
        member.says = [None]
        with pytest.raises(HostError, match=f"echo has ended {how} before it answered"):
            await member.host.start(HOLDER, "echo")
        assert not member.alive


async def test_slices_that_nobody_names_take_no_process_and_keep_the_one_they_have(member: Member) -> None:
    member.says = [None, SERVES]
    await member.host.start(HOLDER, "echo")
    member.become(quarantined=True)
    assert await member.host.start(HOLDER, "echo") == SERVES.endpoint, "it goes on"
    member.says = [None]
    with pytest.raises(HostError, match="take no new processes"):
        await member.host.start(HOLDER, "echo")
    assert len(member.alive) == 1
    os.kill(member.alive[0].pid, signal.SIGKILL)
    with pytest.raises(HostError, match="take no new processes"):
        await member.host.start(HOLDER, "echo")
    assert len(member.started) == 1


async def test_a_lease_that_is_being_ended_is_not_served(member: Member) -> None:
    member.says = [None]
    member.become(intent=Intent.STOP)
    with pytest.raises(HostError):
        await member.host.start(HOLDER, "echo")
    assert not member.started


async def test_what_is_not_installed_is_not_started(member: Member) -> None:
    with pytest.raises(HostError, match="no service named other") as error:
        await member.host.start(HOLDER, "other")
    assert "install what provides other" in error.value.hint
    assert not member.started
    assert member.host.offered() == {"echo"}


@pytest.mark.parametrize(
    ("answer", "health", "figures"),
    [
        (None, "its process does not answer", None),
        (Answer(), "its process is starting", None),
        (Answer(problem="broken"), "broken", None),
        (Answer("127.0.0.1:7", problem="limps", figures={"sessions": 1}), "limps", {"sessions": 1}),
        (SERVES, "", SERVES.figures),
    ],
)
async def test_how_it_is_and_what_it_counts(
    member: Member, answer: Answer | None, health: str, figures: dict[str, int] | None
) -> None:
    member.says = [answer]
    assert await member.host.health(HOLDER) == health
    assert await member.host.measure(HOLDER) == figures
    assert member.host.figures().get(HOLDER) == (answer.figures if answer is not None else None)


async def test_nothing_is_kept_of_a_member_that_has_gone(member: Member, tmp_path: Path) -> None:
    member.says = [None, SERVES]
    await member.host.start(HOLDER, "echo")
    assert await member.host.measure(HOLDER)
    (served,) = kept(tmp_path)
    await member.host.stop(HOLDER)
    assert kept(tmp_path) == [served], "it is held (again)"
    os.kill(member.alive[0].pid, signal.SIGKILL)
    member.host._children[HOLDER].wait()
    assert await member.host.health(HOLDER) == "its process has ended by SIGKILL"
    member.state.book.forget(member.record.slice_id)
    await member.host.stop(HOLDER)
    assert not kept(tmp_path)
    assert member.host.figures() == {}
    assert await member.host.measure(HOLDER) == SERVES.figures
    assert member.host.figures() == {}, "a late word of one that is not held any more"


@pytest.mark.parametrize(
    ("uid", "problem", "offered"),
    [
        (os.geteuid(), "it would be", {"echo"}),
        (os.geteuid() + 1, "", {"echo"}),
        (os.geteuid() + 1, "Python can't be read", set()),
    ],
)
async def test_what_its_user_can_not_run_is_not_offered_and_the_node_says_why(
    member: Member,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uid: int,
    problem: str,
    offered: set[str],
) -> None:
    asked: list[int] = []

    def try_as(user: int) -> str:
        asked.append(user)
        return problem

    monkeypatch.setattr(hosting, "_try_as", try_as)
    parts: Any = member
    host = hosting.ProcessHost(
        state=member.state,
        attacher=parts,
        signaller=parts,
        directory=tmp_path,
        settings=HostingSettings(user=str(uid), ahead=False),
    )
    await host.sweep()
    assert host.offered() == offered
    assert asked == ([] if uid == os.geteuid() else [uid])
    assert member.state.notes.get("serving") == (None if offered else f"no lease can be served here: {problem}")
