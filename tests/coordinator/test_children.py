"""What a coordinator starts beside itself is started whole, and its death is no news to anybody else."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from aliquot.coordinator.programmes import ProgrammeError
from aliquot.coordinator.upkeep.price_learner import run_lesson

uvloop = pytest.importorskip("uvloop")

_SPAWNING = """
import asyncio, sys
from aliquot.common.runtime import event_loop_factory
import grpc, grpc.aio

async def main():
    async def echo(request, context):
        return request
    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", {"E": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    async def load():
        async with insecure_channel(f"127.0.0.1:{port}") as channel:
            call = channel.unary_unary("/t.T/E")
            while True:
                await call(b"x")
    loads = [asyncio.create_task(load()) for _ in range(4)]
    for _ in range(60):
        process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "")
        print(await process.wait())
    for each in loads:
        each.cancel()
    await asyncio.gather(*loads, return_exceptions=True)
    await server.stop(None)

with asyncio.Runner(loop_factory=event_loop_factory()) as runner:
    runner.run(main())
"""


def test_children_are_started_while_calls_are_served() -> None:
    done = subprocess.run([sys.executable, "-c", _SPAWNING], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0"] * 60
    assert "fork" not in done.stderr, "gRPC handles forks, which now and then ends a child before it begins"


def test_a_lesson_that_dies_before_it_is_told_anything_is_a_lesson_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")

    async def lessons() -> None:
        for size in (10, 1 << 20) * 10:
            with pytest.raises(ProgrammeError):
                await run_lesson(b"x" * size, 1)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(lessons())
