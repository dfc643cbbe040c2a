"""What if: a plan, for screens. The program of `aliquot plan` is run for one answer; nothing real is touched."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import io
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Annotated, Final

import msgspec
from fastapi import APIRouter, Response
from pydantic import BaseModel, Field

from aliquot.client import AsyncPool, InvalidRequest, Overloaded, Unavailable
from aliquot.client.documents import plain
from aliquot.common.errors import AliquotError
from aliquot.common.request import parse_request
from aliquot.console.api.answers import answer, shows
from aliquot.console.api.asking import Body
from aliquot.console.api.callers import Pool

router = APIRouter(tags=["plans"])
REQUESTS_MAX: Final = 5_000
NODES_MAX: Final = 2_000
PLANS_MAX: Final = 2
"""At once: each is a process that computes."""
PATIENCE_S: Final = 60.0
_PAGE: Final = 500
_slots = asyncio.Semaphore(PLANS_MAX)

Word = Annotated[str, Field(pattern=r"^[a-z0-9_-]{1,40}$")]


class PlannedRequest(Body):
    """One request. With times of all of them, waits are told, too."""

    gpu: str = Field(max_length=256)
    gang: int = Field(1, ge=1, le=1000)
    arrival_s: float = Field(0.0, ge=0)
    duration_s: float = Field(0.0, ge=0, description="0: for good.")


class Trial(Body):
    """What to place, and how."""

    requests: list[PlannedRequest] = Field(min_length=1, max_length=REQUESTS_MAX)
    policies: list[Word] = Field(["price"], min_length=1, max_length=10)
    more_nodes: int = Field(0, ge=0, le=1000, description="Also with so many nodes more, like the most frequent kind.")


class PlanOutcome(BaseModel):
    """How one policy did on one pool."""

    label: str
    policy: str
    devices: int
    requests: int
    placed: int
    allocated_percent: float
    fragmented_percent: float = Field(description="Idle, and of no use to these requests.")
    wait_p50_s: float | None = None
    wait_p95_s: float | None = None
    left_waiting: int | None = None
    impossible: int | None = None


class Plan(BaseModel):
    """Side by side."""

    outcomes: list[PlanOutcome]


@router.post("/plans", responses=shows(Plan))
async def plan(pool: Pool, wanted: Trial) -> Response:
    """Place requests on the pool's nodes as if these were empty, under each policy. Changes nothing."""
    nodes = await _nodes(pool)
    if not nodes:
        raise InvalidRequest("the pool has no nodes to plan with", reason="NO_NODES")
    for number, each in enumerate(wanted.requests, 1):
        try:
            parse_request(each.gpu)
        except AliquotError as error:
            raise InvalidRequest(f"request {number}: {error.message}", hint=error.hint) from error
    async with _slot():
        with tempfile.TemporaryDirectory(prefix="aliquot-plan-") as folder:
            nodes_file, trace = Path(folder, "nodes.json"), Path(folder, "requests.csv")
            await asyncio.to_thread(nodes_file.write_bytes, msgspec.json.encode({"nodes": nodes}))
            await asyncio.to_thread(trace.write_text, _csv(wanted.requests), encoding="utf-8")
            words = [word for policy in wanted.policies for word in ("-P", policy)]
            words += ["--nodes", str(nodes_file), "--trace", str(trace), "--more", str(wanted.more_nodes)]
            made = await _run(words)
    outcomes = [PlanOutcome.model_validate(each) for each in made["outcomes"]]
    return answer(Plan(outcomes=outcomes).model_dump())


async def _nodes(pool: AsyncPool) -> list[object]:
    nodes: list[object] = []
    token = ""
    while len(nodes) <= NODES_MAX:
        page = await pool.nodes_page(token, _PAGE, with_devices=True)
        nodes += [plain(node) for node in page.items if node.devices]
        token = page.next_token
        if not token:
            return nodes
    raise InvalidRequest(
        f"a plan of this kind has {NODES_MAX} nodes at most",
        hint="`aliquot nodes --json | aliquot plan --nodes - …` has no bound",
        reason="TOO_MANY_NODES",
    )


def _csv(requests: Sequence[PlannedRequest]) -> str:
    text = io.StringIO()
    in_time = any(each.arrival_s or each.duration_s for each in requests)
    names = ["gpu", "gang", "arrival_s", "duration_s"] if in_time else ["gpu", "gang"]
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(each.model_dump(include=set(names)) for each in requests)
    return text.getvalue()


@contextlib.asynccontextmanager
async def _slot() -> AsyncIterator[None]:
    if _slots.locked():
        raise Overloaded(f"{PLANS_MAX} plans are being made, which is the bound", retry_after_s=5.0)
    async with _slots:
        yield


async def _run(arguments: Sequence[str]) -> dict[str, list[object]]:
    """The program's document. Raises what it refused as InvalidRequest, and Unavailable where it isn't installed."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "aliquot.cli", "plan", "--json", *arguments,
        stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )  # fmt: skip
    try:
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    except TimeoutError as error:
        raise InvalidRequest(
            f"this plan takes longer than {PATIENCE_S:g} s", hint="plan with fewer requests", reason="TOO_LARGE"
        ) from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
    if process.returncode == 0:
        document: dict[str, list[object]] = msgspec.json.decode(out)
        return document
    raise _refused(err)


def _refused(err: bytes) -> InvalidRequest | Unavailable:
    try:
        found = msgspec.json.decode(err.strip().splitlines()[-1])["error"]
    except (IndexError, KeyError, TypeError, msgspec.DecodeError):
        return Unavailable("the plan ended without an answer", hint="the console's log may say why")
    if found["reason"] == "USAGE":
        return Unavailable(found["message"], hint="plans need the extra `coordinator` where the console runs")
    return InvalidRequest(found["message"], hint=found["hint"], reason=found["reason"])
