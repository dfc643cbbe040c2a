"""`demo`: the whole product in about a minute, on simulated GPUs and real processes."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.text import Text

from aliquot.cli._command import Work
from aliquot.cli._exits import Exit
from aliquot.cli._foreground import end_as_interrupted
from aliquot.cli._out import Out
from aliquot.cli.demo import acts, elsewhere
from aliquot.cli.demo.story import Story
from aliquot.cli.localpool import Layout, LocalPool, PoolSetup, require_pool
from aliquot.cli.localpool.pool import CONSOLE_PORT
from aliquot.client.admin import Invoice
from aliquot.common.errors import AliquotError


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.epilog = (
        "Starts its own pool of 2 nodes with 4 simulated A100s each, in a temporary folder and on free ports.\n"
        "The exit code is 0 only when every step held."
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="keep state and logs here")
    parser.add_argument(
        "--torch", action="store_true", help="the program elsewhere trains by PyTorch, which takes longer to start"
    )


def _demo(args: argparse.Namespace, out: Out) -> int:
    require_pool()
    end_as_interrupted()
    story = Story(out)
    shown: dict[str, object] = {}
    with contextlib.ExitStack() as stack:
        root = args.state_dir or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="aliquot-demo-")))
        story.show(Text("aliquot hands out exact parts of GPUs, keeps them exact, and says why.", "bold"))
        try:
            shown["invoices"] = _show(_start_pool(stack, story, root), torch=args.torch)
        except AliquotError as error:
            out.error(error)
    _sum_up(out, story, shown)
    return Exit.OK if story.ok else Exit.FAILED


def _show(stage: acts.Stage, *, torch: bool) -> list[Invoice]:
    acts.share(stage)
    acts.overstep(stage)
    acts.refuse(stage)
    elsewhere.train_elsewhere(stage, torch=torch)
    acts.lose_coordinator(stage)
    acts.lose_agent(stage)
    return acts.account(stage)


def _start_pool(stack: contextlib.ExitStack, story: Story, root: Path) -> acts.Stage:
    with story.step("A pool of 2 nodes with 4 simulated A100s each, as separate processes"):
        plan = PoolSetup(listen="127.0.0.1:0", metrics_port=0, agent_metrics_port=0, tiers=acts.TIERS)
        local = LocalPool(Layout.of(root), plan, story.tell)
        # Whatever happens, nothing that was started outlives the demonstration.
        stack.enter_context(local).start()
        stage = acts.Stage(story, local, stack.enter_context(local.connect()))
        stack.callback(stage.clear)
        story.tell(
            f"coordinator at {local.address}, pid {local.coordinator.pid}; its journal is {local.layout.journal}"
        )
        for node in local.nodes:
            story.tell(f"{node.name}: {node.devices}; agent pid {node.agent.pid}")
        devices = list(stage.pool.devices())
        story.claim("8 devices are there and healthy", holds=sum(device.healthy for device in devices) == 8)
    return stage


def _sum_up(out: Out, story: Story, shown: Mapping[str, object]) -> None:
    out.document({"ok": story.ok, "took_s": round(story.took_s, 1), "steps": story.steps, **shown})
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


DEMO = Work(_configure, _demo)
