"""Sick cards: what an agent says of them, and what it does about them when it is told to."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.disk.durable import read_record
from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.coordinator import Coordinator
from tests.agent.harness import Node, auntil, desired
from tests.agent.test_enforcement_on_processes import grant
from tests.agent.test_recovery import CRASHING

RESET, REBOOT, VERIFY = types_pb2.REMEDY_RESET, types_pb2.REMEDY_REBOOT, types_pb2.REMEDY_VERIFY
RESET_ACTION = 1
MIB = 1 << 20


def script(node: Node, name: str, text: str) -> Path:
    """A command of the administrator's; `$1` is the card, `$log` where it may say what it did."""
    path = node.directory / name
    head = f"#!/bin/sh\nlog={node.directory / 'said'}\nscenario={node.scenario_path}\npython={sys.executable}\n"
    path.write_text(head + text)
    path.chmod(0o700)
    return path


RESETS = """
$python -c "import sys; from aliquot import simgpu; simgpu.Scenario(sys.argv[1]).reset(sys.argv[2])" $scenario $1
echo reset $2 by $3
"""


def set_up(node: Node, reset: str = RESETS, restore: str = "echo restored $1 >> $log\n", **more: str) -> None:
    """The agent may repair, by these commands."""
    node.environment |= {
        "ALIQUOT_AGENT_REPAIR_RESET": f"{script(node, 'reset', reset)},{{uuid}},{{index}},{{action}}",
        "ALIQUOT_AGENT_REPAIR_RESTORE": f"{script(node, 'restore', restore)},{{uuid}}",
        **more,
    }


def said(node: Node) -> list[str]:
    path = node.directory / "said"
    return path.read_text().splitlines() if path.exists() else []


def send(coordinator: Coordinator, number: int, action: types_pb2.Remedy.ValueType, *uuids: str) -> None:
    care = agent_pb2.Care(
        leader_epoch=1,
        session_epoch=coordinator.session_epoch,
        number=number,
        action=action,
        uuids=uuids,
        reason="sick",
    )
    coordinator.send(agent_pb2.CoordinatorMessage(care=care))


async def answer(coordinator: Coordinator, number: int) -> types_pb2.CareResult:
    def found() -> types_pb2.CareResult | None:
        results = coordinator.snapshots[-1].node.care if coordinator.snapshots else ()
        return next((result for result in results if result.number == number), None)

    await coordinator.until(lambda: found() is not None, f"order {number} is answered")
    result = found()
    assert result is not None
    return result


async def start(node: Node, coordinator: Coordinator) -> None:
    await asyncio.to_thread(node.start, coordinator.address)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot came")


async def until_unwell(coordinator: Coordinator, uuid: str) -> agent_pb2.DeviceReport:
    """What the agent says of a device that it has found unwell."""

    def reports() -> list[agent_pb2.DeviceReport]:
        every = [report for delta in coordinator.deltas for report in delta.devices]
        return [report for report in every if report.uuid == uuid and report.HasField("sign")]

    await coordinator.until(lambda: bool(reports()), f"{uuid} is unwell")
    return reports()[-1]


async def test_a_card_is_reset_and_is_well_again(node: Node, coordinator: Coordinator) -> None:
    set_up(node)
    await start(node, coordinator)
    assert set(coordinator.snapshots[-1].node.remedies) == {"reset", "verify"}
    uuid = node.uuids[0]
    node.scenario.set_recovery_action(0, RESET_ACTION)
    told = await until_unwell(coordinator, uuid)
    assert told.sign == types_pb2.Sign(
        cause="recovery-reset",
        severity=types_pb2.SIGN_SEVERITY_FATAL,
        scope=types_pb2.SIGN_SCOPE_CARD,
        remedy=types_pb2.REMEDY_RESET,
    )
    send(coordinator, 7, RESET, uuid)
    result = await answer(coordinator, 7)
    assert not result.problem
    assert result.story == "reset 0 by reset"
    assert said(node) == [f"restored {uuid}"]
    await auntil(lambda: all(device.healthy for device in node.status().devices), "it is well")
    # Sent again it is answered again, and nothing is done.
    snapshots = len(coordinator.snapshots)
    send(coordinator, 7, RESET, uuid)
    await coordinator.until(lambda: len(coordinator.snapshots) > snapshots, "it is answered again")
    assert len(said(node)) == 1


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("echo no such card >&2\nexit 3\n", "ended with 3: no such card"),
        ("sleep 60\n", "took longer than 0.5 s"),
        ("exit 0\n", "the repair had no effect: the driver asks for: reset"),
    ],
    ids=["fails", "hangs", "has no effect"],
)
async def test_a_reset_that_does_not_help_is_told_and_what_it_needed_is_put_back(
    node: Node, coordinator: Coordinator, command: str, problem: str
) -> None:
    set_up(node, command, ALIQUOT_AGENT_REPAIR_TIMEOUT="500ms")
    await start(node, coordinator)
    node.scenario.set_recovery_action(1, RESET_ACTION)
    send(coordinator, 1, RESET, node.uuids[1])
    assert problem in (await answer(coordinator, 1)).problem
    assert said(node) == [f"restored {node.uuids[1]}"]
    assert node.status().devices, "it measures again"


async def test_nothing_is_asked_of_the_driver_during_a_reset_and_one_that_does_not_come_back_is_opened_again(
    node: Node, coordinator: Coordinator
) -> None:
    code = (
        "import sys, time; from aliquot import simgpu; s = simgpu.Scenario(sys.argv[1]); "
        "s.hang('*'); time.sleep(2); s.clear_faults(); s.fail('init', 9)"
    )
    set_up(node, f'$python -c "{code}" $scenario\n')
    await start(node, coordinator)
    send(coordinator, 1, RESET, node.uuids[0])
    assert "Driver Not Loaded" in (await answer(coordinator, 1)).problem
    assert "has not come back within" not in node.log
    node.scenario.clear_faults()
    await auntil(lambda: all(device.healthy for device in node.status().devices), "it measures again")


async def test_an_agent_that_is_killed_while_it_repairs_puts_back_what_it_needed_and_begins_again(
    node: Node, coordinator: Coordinator
) -> None:
    once = f'[ -e "$log.once" ] || {{ touch $log.once; sleep 60; }}\n{RESETS}'
    set_up(node, once)
    await start(node, coordinator)
    node.scenario.set_recovery_action(0, RESET_ACTION)
    send(coordinator, 3, RESET, node.uuids[0])
    await auntil((node.directory / "said.once").exists, "the command runs")
    node.kill9()
    assert read_record(node.state_dir / "care.record", "care", dict)["begun"]["order"]["number"] == 3
    await asyncio.to_thread(node.start, coordinator.address)
    assert said(node)[0] == f"restored {node.uuids[0]}"
    result = await answer(coordinator, 3)
    assert not result.problem
    assert read_record(node.state_dir / "care.record", "care", dict)["begun"] is None


async def test_what_came_of_an_order_is_told_only_once_it_is_on_disk(node: Node, coordinator: Coordinator) -> None:
    set_up(node)
    node.environment["TEST_CRASH_AT"] = "care-held"
    record = node.state_dir / "care.record"
    await asyncio.to_thread(node.start, coordinator.address, program=CRASHING)
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot came")
    node.scenario.set_recovery_action(0, RESET_ACTION)
    send(coordinator, 3, RESET, node.uuids[0])
    await auntil(record.with_name("held").exists, "the card was reset, and the result is about to be written")
    assert said(node) == [f"restored {node.uuids[0]}"]
    before = len(coordinator.snapshots)
    ask = agent_pb2.SnapshotRequest(reason="a test")
    coordinator.send(agent_pb2.CoordinatorMessage(snapshot_request=ask))
    await coordinator.until(lambda: len(coordinator.snapshots) > before, "the agent says all that it tells")
    assert not coordinator.snapshots[-1].node.care
    assert read_record(record, "care", dict)["begun"]["order"]["number"] == 3
    record.with_name("let-go").touch()
    assert not (await answer(coordinator, 3)).problem
    stored = read_record(record, "care", dict)
    assert stored["begun"] is None
    assert set(stored["results"]) == {"3"}


async def test_a_card_that_a_lease_holds_is_left_alone(node: Node, coordinator: Coordinator) -> None:
    set_up(node)
    await grant(node, coordinator, desired(node.uuids[0]))
    send(coordinator, 1, RESET, node.uuids[0])
    assert "leases still hold" in (await answer(coordinator, 1)).problem
    send(coordinator, 2, RESET, node.uuids[1])
    assert not (await answer(coordinator, 2)).problem


async def test_an_agent_that_is_not_set_to_repair_says_so_and_offers_nothing(
    node: Node, coordinator: Coordinator
) -> None:
    await start(node, coordinator)
    assert list(coordinator.snapshots[-1].node.remedies) == ["verify"]
    send(coordinator, 1, RESET, node.uuids[0])
    assert "not set to reset" in (await answer(coordinator, 1)).problem


async def test_a_restart_that_does_not_come_is_told(node: Node, coordinator: Coordinator) -> None:
    set_up(
        node,
        ALIQUOT_AGENT_REPAIR_REBOOT=str(script(node, "reboot", "echo reboot >> $log\n")),
        ALIQUOT_AGENT_REPAIR_TIMEOUT="300ms",
    )
    await start(node, coordinator)
    send(coordinator, 1, REBOOT, *node.uuids)
    assert "was not restarted" in (await answer(coordinator, 1)).problem
    assert said(node) == ["reboot"]


async def test_a_card_is_tested_in_a_process_of_its_own(node: Node, coordinator: Coordinator) -> None:
    node.environment |= {"ALIQUOT_SIMGPU_BACKED": "1", "ALIQUOT_AGENT_REPAIR_VERIFY_MEMORY": str(128 * MIB)}
    await start(node, coordinator)
    send(coordinator, 1, VERIFY, node.uuids[0])
    result = await answer(coordinator, 1)
    assert not result.problem
    assert "idle, no complaint" in result.story
    assert "128 MiB filled with 4 patterns" in result.story
    assert "a kernel computed right" in result.story
    assert [(each.uuid, each.mb_per_s > 0) for each in result.copies] == [(node.uuids[0], True)]
    node.scenario.set_recovery_action(0, RESET_ACTION)
    send(coordinator, 2, VERIFY, node.uuids[0])
    assert "the driver asks for: reset" in (await answer(coordinator, 2)).problem
    await asyncio.to_thread(node.foreign_burn, "1Gi", 1)
    send(coordinator, 3, VERIFY, node.uuids[1])
    assert "processes are on" in (await answer(coordinator, 3)).problem


async def test_a_card_that_computes_wrongly_or_forgets_does_not_pass(node: Node, coordinator: Coordinator) -> None:
    node.environment |= {"ALIQUOT_SIMGPU_BACKED": "1", "ALIQUOT_AGENT_REPAIR_VERIFY_MEMORY": str(128 * MIB)}
    await start(node, coordinator)
    node.scenario.fail("miscompute", 1, device=0)
    send(coordinator, 1, VERIFY, node.uuids[0])
    assert "it computes wrongly: 1 of 131072 results" in (await answer(coordinator, 1)).problem
    node.scenario.clear_faults()
    node.scenario.fail("cuMemcpyDtoD_v2", 719, device=0)
    send(coordinator, 2, VERIFY, node.uuids[0])
    assert "CUDA error 719" in (await answer(coordinator, 2)).problem
    node.scenario.clear_faults()
    node.scenario.fail("cuModuleLoadData", 221, device=0)
    send(coordinator, 3, VERIFY, node.uuids[0])
    result = await answer(coordinator, 3)
    assert not result.problem, "a driver without a compiler says nothing of the card"
    assert "no kernel was run" in result.story


async def test_a_test_that_kills_its_card_is_told_and_the_card_is_off_the_bus(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    # The card is lost in the midst of the test: as the driver is asked for memory.
    killer = tmp_path / "sitecustomize.py"
    killer.write_text(
        "import sys\n"
        "if 'aliquot.agent.doctor.card' in ' '.join(sys.orig_argv):\n"
        "    from aliquot import simgpu\n"
        "    from aliquot.common import cuda\n"
        "    call = cuda.Driver.call\n"
        "    def dying(self, name, *arguments):\n"
        "        if name == 'cuMemAlloc_v2':\n"
        f"            simgpu.Scenario({str(node.scenario_path)!r}).lose(0)\n"
        "        call(self, name, *arguments)\n"
        "    cuda.Driver.call = dying\n"
    )
    memory = {"ALIQUOT_SIMGPU_BACKED": "1", "ALIQUOT_AGENT_REPAIR_VERIFY_MEMORY": str(128 * MIB)}
    node.environment |= {**memory, "PYTHONPATH": str(tmp_path)}
    await start(node, coordinator)
    send(coordinator, 1, VERIFY, node.uuids[0])
    assert "CUDA error" in (await answer(coordinator, 1)).problem
    assert (await until_unwell(coordinator, node.uuids[0])).sign.cause == "off-the-bus"
    assert next(device for device in node.status().devices if device.uuid == node.uuids[1]).healthy
    send(coordinator, 2, VERIFY, node.uuids[1])
    assert not (await answer(coordinator, 2)).problem, "it goes on carrying out orders"


_DCGMI = """#!/bin/sh
if [ "$1" = discovery ]; then
    echo "| 0      | Name: NVIDIA A100-SXM4-40GB            |"
    echo "|        | Device UUID: GPU-of-somebody-else      |"
    echo "| 4      | Name: NVIDIA A100-SXM4-40GB            |"
    echo "|        | Device UUID: $UUID |"
    exit
fi
[ "$*" = "diag -r 1 -i 4" ] || exit 9
echo "Successfully ran diagnostic for group."
echo "| Diagnostic                | Result                                         |"
echo "| Denylist                  | Pass                                           |"
echo "| PCIe                      | $RESULT - GPU: 0                               |"
"""


@pytest.mark.parametrize(
    ("result", "problem", "story"),
    [
        ("Pass", "", "dcgmi diag -r 1: 2 tests passed"),
        ("Fail", "dcgmi diag -r 1: failed: PCIe", ""),
        ("Warn", "", "dcgmi diag -r 1: 1 tests passed"),
        ("", "", "dcgmi could not test it: no host engine"),
    ],
)
def test_what_dcgm_says_of_a_card_counts_where_it_can_say_something(
    node: Node, tmp_path: Path, result: str, problem: str, story: str
) -> None:
    program = tmp_path / "bin" / "dcgmi"
    program.parent.mkdir()
    said = _DCGMI.replace("$RESULT", result).replace("$UUID", node.uuids[0])
    program.write_text(said if result else "#!/bin/sh\necho no host engine >&2; exit 235\n")
    program.chmod(0o755)
    command = [
        sys.executable,
        "-m",
        "aliquot.agent.doctor.card",
        "--uuid",
        node.uuids[0],
        "--level",
        "1",
        "--dcgm",
        "1",
    ]
    path = f"{program.parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**node.base_environment(), "PATH": path}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    answer = json.loads(done.stdout)
    assert answer["problem"] == problem
    assert story in answer["story"]
    assert done.returncode == bool(problem)


async def test_the_kernels_log_tells_of_xids_and_whose_they_are(node: Node, coordinator: Coordinator) -> None:
    log = node.directory / "kmsg"
    log.write_text("6,1,1,-;NVRM: Xid (PCI:0000:00:00): 79, from before the agent started\n")
    node.environment["ALIQUOT_AGENT_KERNEL_LOG"] = str(log)
    device = node.uuids[0]
    await grant(node, coordinator, desired(device), desired(device, slice_id="l-2.1.0", lease_id="l-2"))
    job = await asyncio.to_thread(node.burn, "1Gi", lease_id="l-2")
    bus = coordinator.snapshots[-1].node.devices[0].pci_bus_id[:-2]
    other_bus = coordinator.snapshots[-1].node.devices[1].pci_bus_id[:-2]
    hits: list[agent_pb2.LeaseHit] = coordinator.hits
    with log.open("a") as file:
        for number in range(1_000):
            file.write(f"3,{number},5,-;NVRM: Xid (PCI:{bus}): 31, pid={job.pid}, name=python, MMU Fault\n")
        file.write(f"3,5,6,-;NVRM: Xid (PCI:{bus}): 45, pid='<unknown>', name=<unknown>, Ch 00000008\n")
        file.write(f"3,6,7,-;NVRM: Xid (PCI:{other_bus}): 79, pid=1, GPU has fallen off the bus.\n")
    await coordinator.until(lambda: "XID 79" in node.log, "the line was heard")
    other = next(each for each in node.status().devices if each.uuid == node.uuids[1])
    assert other.healthy, "a line alone takes no card out: it may be forged"
    node.scenario.lose(1)
    with log.open("a") as file:
        file.write(f"3,8,7,-;NVRM: GPU {other_bus}.0: GPU has fallen off the bus.\n")
    told = await until_unwell(coordinator, node.uuids[1])
    assert told.sign.cause == "off-the-bus"
    await coordinator.until(lambda: bool(hits), "the lease is told")
    assert [(hit.device_uuid, hit.lease_id, hit.suspicious) for hit in hits] == [(device, "l-2", True)]
    assert "XID 31" in hits[0].text
    first = next(each for each in node.status().devices if each.uuid == device)
    assert first.healthy


async def test_the_drivers_word_counts_after_a_line_that_nothing_confirmed(
    node: Node, coordinator: Coordinator
) -> None:
    """Whoever gets a line into the log, or a log that is quicker than the driver, must not silence the driver."""
    log = node.directory / "kmsg"
    log.write_text("")
    node.environment["ALIQUOT_AGENT_KERNEL_LOG"] = str(log)
    await start(node, coordinator)
    bus = coordinator.snapshots[-1].node.devices[0].pci_bus_id[:-2]
    with log.open("a") as file:
        file.write(f"3,1,1,-;NVRM: Xid (PCI:{bus}): 95, pid=1, Uncontained ECC error\n")
    await coordinator.until(lambda: "reported" in node.log and "95" in node.log, "the line was heard")
    node.scenario.raise_xid(0, 95)
    assert (await until_unwell(coordinator, node.uuids[0])).sign.cause == "uncontained-memory"


@pytest.mark.parametrize("late", [False, True])
async def test_what_only_the_log_tells_counts_once_the_card_complains(
    node: Node, coordinator: Coordinator, late: bool
) -> None:
    """XID 119, the GPU's own processor: NVML does not tell it, and the card may answer for a while yet."""
    log = node.directory / "kmsg"
    log.write_text("")
    node.environment["ALIQUOT_AGENT_KERNEL_LOG"] = str(log)
    await start(node, coordinator)
    bus = coordinator.snapshots[-1].node.devices[0].pci_bus_id[:-2]
    if not late:
        node.scenario.set_recovery_action(0, RESET_ACTION)
    with log.open("a") as file:
        file.write(f"3,1,1,-;NVRM: Xid (PCI:{bus}): 119, pid=1, Timeout after 6s of waiting for RPC response\n")
    if late:
        await coordinator.until(lambda: "119" in node.log, "the line was heard")
        node.scenario.set_recovery_action(0, RESET_ACTION)
    assert not (await until_unwell(coordinator, node.uuids[0])).healthy


async def test_a_kernels_log_that_is_not_there_is_no_fault(node: Node, coordinator: Coordinator) -> None:
    node.environment["ALIQUOT_AGENT_KERNEL_LOG"] = str(node.directory / "nothing")
    await start(node, coordinator)
    node.scenario.raise_xid(0, 95)
    assert (await until_unwell(coordinator, node.uuids[0])).sign.cause == "uncontained-memory"
