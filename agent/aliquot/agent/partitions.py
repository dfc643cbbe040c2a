"""Changes the MIG layout of cards as the coordinator orders, where this node's administrator allows it.

Nothing in use is touched: an instance with a reservation or a process makes the whole order fail, and the answer says
why. If an order fails half way, the old layout is restored as far as the driver allows. The result of an order and the
layout of each card are on disk before they are reported: instances are lost with a restart of the machine, and are
created again before devices are discovered.
"""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec

from aliquot.agent.core.partitioning import Card, CutOrder, CutResult, Part, difference
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.disk.durable import Damaged
from aliquot.agent.enforce.base import EnforcementError
from aliquot.agent.mailbox import Mailbox
from aliquot.agent.parts import Ground
from aliquot.common.tasks import Tasks

log = logging.getLogger(__name__)

CUT_TIMEOUT_S = 120.0
"""A driver takes seconds for each part."""
_KIND = "cuts"
NOT_ALLOWED = "this node's agent does not let its cards be cut (its setting `mig.repartition`)"


class _Stored(msgspec.Struct, frozen=True):
    boot_id: str
    cuts: dict[str, CutResult] = {}


class Partitions:
    """See the module's docstring. Use from one event loop."""

    def __init__(self, ground: Ground, mailbox: Mailbox, discover: Callable[[], Awaitable[None]]) -> None:
        self.state, self.guard, self.world = ground.state, ground.guard, ground.world
        self.geometry, self.allowed = ground.backend.geometry, ground.settings.mig.repartition
        self.record = ground.checkpoint.record("cuts")
        self.mailbox, self.discover = mailbox, discover
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """Orders about one card are carried out one after the other."""
        self._writing = asyncio.Lock()
        self._tasks = Tasks()

    def offer(self) -> list[Card]:
        """The cards that the coordinator may have cut. Where that is allowed but can't be done, the node says so."""
        if not self.allowed:
            return []
        self.state.notes.pop("cards", None)
        if self.state.card_problems:
            # Not by `note`: the snapshot that is being made tells it, and there need not be another.
            self.state.notes["cards"] = "; ".join(self.state.card_problems)
        return list(self.state.cards.values())

    async def restore(self) -> None:
        """Take up what is on disk; after a restart of the machine, cut the cards that have lost their parts as they
        were. Devices must have been looked for.
        """
        stored = self._load()
        self.state.cuts = dict(stored.cuts)
        if stored.boot_id == self.state.boot_id or not self.allowed:
            return
        for uuid, result in stored.cuts.items():
            card = self.state.cards.get(uuid)
            if not result.parts or (card is not None and card.parts):
                continue
            if card is None:
                self._note(uuid, f"{uuid} was cut into parts, and is not in MIG mode any more: switch it on again")
                continue
            problem = await self._apply(card, result.parts)
            log.warning("%s was cut again as before the restart: %s", uuid, problem or "done")
            if problem:
                self._note(uuid, f"{uuid} could not be cut as before the restart: {problem}")
        await self._write_down()
        await self._look()

    def obey(self, order: CutOrder) -> None:
        """Carry out an order, in its turn."""
        self._tasks.run(f"cut {order.card_uuid}", self._obey(order))

    async def close(self) -> None:
        """Wait for orders in progress: no card is left half changed."""
        await self._tasks.wait()

    async def _obey(self, order: CutOrder) -> None:
        async with self._locks[order.card_uuid]:
            known = self.state.cuts.get(order.card_uuid, CutResult(0))
            if order.number > known.number:
                card = self.state.cards.get(order.card_uuid)
                problem = await self._carry_out(card, order)
                log.log(
                    logging.ERROR if problem else logging.WARNING,
                    "cut %s: %s",
                    order.card_uuid,
                    problem or "done",
                    extra={"number": order.number, "why": order.reason, "parts": _words(order.parts)},
                )
                parts = known.parts if problem else order.parts
                self.state.cuts[order.card_uuid] = CutResult(order.number, problem, parts)
                await self._write_down()
        self.mailbox.request_snapshot()

    async def _carry_out(self, card: Card | None, order: CutOrder) -> str:
        """Returns why it can't be done, or an empty text."""
        if not self.allowed:
            return NOT_ALLOWED
        if card is None:
            return "this node has no such card in MIG mode"
        before = card.geometry
        problem = await self._apply(card, order.parts)
        if problem:
            # Some or all of it may have changed: create again what is missing of the old layout.
            await self._look()
            card = self.state.cards.get(card.uuid, card)
            if card.geometry != before and (again := await self._apply(card, before)):
                problem = f"{problem}; and it could not be put back as it was: {again}"
        await self._look()
        return problem

    async def _look(self) -> None:
        """See what a cut has made of the devices. What can't be seen now is seen by the next discovery."""
        try:
            await self.discover()
        except DeviceError as error:
            log.warning("devices can't be listed after a cut: %s", error.message)

    async def _write_down(self) -> None:
        try:
            async with self._writing:
                await asyncio.to_thread(self._save)
        except OSError as error:
            log.error("how cards are cut could not be written down: %s", error)  # noqa: TRY400

    async def _apply(self, card: Card, parts: tuple[Part, ...]) -> str:
        reserved = [part.start for part, uuid in card.parts if uuid and self.state.leased(uuid)]
        try:
            await self.guard.run(card.uuid, partial(self._cut, card, parts, reserved), timeout_s=CUT_TIMEOUT_S)
        except (EnforcementError, DeviceError) as error:
            return error.message
        except Exception as error:  # a defect must not leave an order without an answer
            log.exception("cutting %s failed", card.uuid)
            return f"{type(error).__name__}: {error}"
        return ""

    def _cut(self, card: Card, parts: tuple[Part, ...], reserved: list[int]) -> None:
        """Runs in a worker thread: reads the layout and changes it without a wait in between."""
        geometry = self.geometry
        if geometry is None:
            raise DeviceError(f"nothing here can cut {card.uuid}")
        existing = geometry.read_instances(card.uuid, card.profiles)
        geometry.apply(card.uuid, difference(card.profiles, existing, parts, reserved))

    def _load(self) -> _Stored:
        try:
            return self.world.records.read_record(self.record, _KIND, _Stored)
        except FileNotFoundError:
            return _Stored("")
        except (OSError, Damaged) as error:
            self._note("record", f"how cards were cut is not known any more: {self.record}: {error}")
            return _Stored("")

    def _save(self) -> None:
        self.world.records.write_record(self.record, _KIND, _Stored(self.state.boot_id, dict(self.state.cuts)))

    def _note(self, subject: str, text: str) -> None:
        log.error("%s", text)
        self.state.note(f"cut {subject}", text)


def _words(parts: tuple[Part, ...]) -> str:
    return ", ".join(f"{part.profile} from {part.start}" for part in parts) or "none"
