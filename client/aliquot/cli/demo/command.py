"""`demo`: the whole product in about a minute, on simulated GPUs and real processes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.text import Text

from aliquot.cli._command import Builtin
from aliquot.cli._exits import Exit
from aliquot.cli._out import Out
from aliquot.cli.demo import acts, elsewhere, replay, vendors
from aliquot.cli.demo.story import Story
from aliquot.cli.demo.usage import LeaseUsage, PeakSampler
from aliquot.cli.localpool import Layout, LocalPool, PoolPlan, require_pool
from aliquot.cli.localpool.pool import CONSOLE_PORT
from aliquot.common.errors import AliquotError
from aliquot.common.files import make_private

TRACES_VARIABLE = "ALIQUOT_TRACES"
BACKED = (("ALIQUOT_SIMGPU_BACKED", "1"),)
"""Simulated device memory holds what is written to it, so that kernels of a program elsewhere can compute."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Starts its own pool of 2 nodes with 4 simulated A100s each, in a temporary folder and on free ports.\n"
        f"Where {TRACES_VARIABLE} names a folder of public traces, it also replays the first pods of openb.\n"
        "The exit code is 0 only when every step held."
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep state and logs here")
    parser.add_argument("--pods", type=int, default=replay.PODS, metavar="N", help=f"pods to replay ({replay.PODS})")
    parser.add_argument("--no-replay", action="store_true", help="leave the trace out")
    parser.add_argument(
        "--vendors", action="store_true", help="instead: cards of NVIDIA, AMD, Intel and Ascend in one pool, simulated"
    )
    parser.add_argument(
        "--torch", action="store_true", help="the program elsewhere trains by PyTorch, which takes longer to start"
    )


def _demo(args: argparse.Namespace, out: Out) -> int:
    require_pool()
    story = Story(out)
    usages: list[LeaseUsage] = []
    replayed: replay.Replay | None = None
    with contextlib.ExitStack() as stack:
        root = args.state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-demo-")))
        story.show(Text("aliquot hands out exact parts of GPUs, keeps them exact, and says why.", "bold"))
        try:
            if args.vendors:
                held = _show_vendors(stack, story, root)
                return _sum_up_vendors(out, story, held)
            stage = _start_pool(stack, story, root)
            acts.share(stage)
            acts.overstep(stage)
            acts.refuse(stage)
            elsewhere.train_elsewhere(stage, torch=args.torch)
            acts.lose_coordinator(stage)
            acts.lose_agent(stage)
            usages = acts.account(stage)
            if not args.no_replay:
                replayed = _replay(out, stage, args.pods)
        except AliquotError as error:
            out.error(error)
    _sum_up(out, story, usages, replayed)
    return Exit.OK if story.ok else Exit.FAILED


def _show_vendors(stack: contextlib.ExitStack, story: Story, root: Path) -> list[vendors.Held]:
    cards = root / "cards"
    plan = PoolPlan(
        nodes=1,
        gpus=2,
        listen="127.0.0.1:0",
        metrics_port=0,
        agent_metrics_port=0,
        agent_variables=(*BACKED, *vendors.make_cards(cards)),
    )
    layout = Layout.of(root)
    with story.step("aliquot doctor tries what holds on AMD's and Intel's cards"):
        layout.make()
        state_dir = layout.node(plan.node_names()[0])
        make_private(state_dir)
        said = vendors.prove(cards, state_dir)
        for line in said:
            story.tell(line)
        story.claim("it says whether the kernel's limits hold", holds=bool(said))
    with story.step("A pool of one node, as separate processes"):
        local = stack.enter_context(LocalPool(layout, plan, story.tell))
        local.start()
        pool = stack.enter_context(local.connect())
        peaks = stack.enter_context(PeakSampler(pool))
        stage = acts.Stage(story, local, pool, peaks)
        stack.callback(stage.clear)
        story.claim("its agent is ready", holds=bool(pool.agents))
    return vendors.show(stage, cards)


def _sum_up_vendors(out: Out, story: Story, held: list[vendors.Held]) -> int:
    out.document({"ok": story.ok, "took_s": round(story.took_s, 1), "steps": story.steps, "held": held})
    claims = sum(len(step.claims) for step in story.steps)
    out.show(Text(), Text(f"All {len(story.steps)} steps held ({claims} checks).", "bold green"))
    return Exit.OK if story.ok else Exit.FAILED


def _start_pool(stack: contextlib.ExitStack, story: Story, root: Path) -> acts.Stage:
    with story.step("A pool of 2 nodes with 4 simulated A100s each, as separate processes"):
        plan = PoolPlan(
            listen="127.0.0.1:0", metrics_port=0, agent_metrics_port=0, tiers=acts.TIERS, agent_variables=BACKED
        )
        local = stack.enter_context(LocalPool(Layout.of(root), plan, story.tell))
        local.start()
        story.tell(
            f"coordinator at {local.address}, pid {local.coordinator.pid}; its journal is {local.layout.journal}"
        )
        for node in local.nodes:
            story.tell(f"{node.name}: {node.devices}; agent pid {node.agent.pid}")
        pool = stack.enter_context(local.connect())
        peaks = stack.enter_context(PeakSampler(pool))
        devices = list(pool.devices())
        story.claim("8 devices are there and healthy", holds=sum(device.healthy for device in devices) == 8)
        stage = acts.Stage(story, local, pool, peaks)
        # Whatever happens, nothing that was started here outlives the demonstration.
        stack.callback(stage.clear)
    return stage


def _replay(out: Out, stage: acts.Stage, pods_max: int) -> replay.Replay | None:
    traces = os.environ.get(TRACES_VARIABLE)
    if not traces:
        stage.story.tell("")
        stage.story.tell(f"({TRACES_VARIABLE} names no folder of public traces, so none is replayed)")
        return None
    story = stage.story
    with story.step(f"The first {pods_max} pods of a public trace, through the same API"):
        with _progress(out, pods_max) as advance:
            result = replay.run(stage.pool, Path(traces), advance, pods_max=pods_max)
        story.tell(
            f"declared {result.nodes} nodes with {result.devices} devices in {result.declare_s:.1f} s; "
            f"replayed {result.pods} pods in {result.replay_s:.1f} s ({result.calls_per_s:.0f} decisions/s)"
        )
        story.tell(
            f"{result.granted} granted, {result.refused} refused for want of room, {result.released} given back, "
            f"{result.cpu_only} wanted no GPU; {result.leased_share_milli / 1000:.1f} devices are leased"
        )
        story.claim("every pod was decided", holds=not result.errors, otherwise="; ".join(result.errors[:3]))
        live = sum(1 for lease in stage.pool.leases() if lease.pool == replay.POOL)
        story.claim("the pool lists exactly the leases that should live", holds=live == result.live)
    return result


@contextlib.contextmanager
def _progress(out: Out, total: int) -> Iterator[Callable[[int], None]]:
    if out.as_json or not out.console.is_terminal:
        yield lambda count: None
        return
    columns = (TextColumn("  {task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=out.console, transient=True) as progress:
        task = progress.add_task("pods", total=total)
        yield lambda count: progress.advance(task, count)


def _sum_up(out: Out, story: Story, usages: list[LeaseUsage], replayed: replay.Replay | None) -> None:
    out.document(
        {
            "ok": story.ok,
            "took_s": round(story.took_s, 1),
            "steps": story.steps,
            "usage": usages,
            "replay": replayed,
        }
    )
    claims = sum(len(step.claims) for step in story.steps)
    if story.ok:
        out.show(
            Text(), Text(f"All {len(story.steps)} steps held ({claims} checks) in {story.took_s:.0f} s.", "bold green")
        )
        out.show("Yours to play with:  aliquot up   then   aliquot run --gpu 0.25,8Gi -- PROGRAM   and   aliquot top")
        if importlib.util.find_spec("fastapi") is not None:
            out.show(f"In a browser:         http://127.0.0.1:{CONSOLE_PORT}, once it is up")
    else:
        failed = story.steps[-1].title if story.steps else "starting"
        out.show(Text(), Text(f"It did not hold: {failed}", "bold red"))


DEMO = Builtin("demo", "see the product on simulated GPUs and real processes, in about a minute", _configure, _demo)
