"""The agent as a service: its unit, its settings file, readiness, and what it says when it is set up wrongly."""

from __future__ import annotations

import asyncio
import configparser
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from aliquot.agent.settings import ENV_PREFIX, Settings
from aliquot.common import config
from tests.agent.coordinator import Coordinator
from tests.agent.harness import ROOT, Node

FILES = ROOT / "deploy" / "systemd"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "aliquot.agent", *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=60,
        check=False,
    )


def test_the_sample_file_names_every_setting_as_it_is_read(tmp_path: Path) -> None:
    text = (FILES / "agent.toml").read_text()
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    assert uncommented != text
    path = tmp_path / "agent.toml"
    path.write_text(uncommented)
    loaded = config.load(Settings, env_prefix=ENV_PREFIX, file=path, table="agent")
    defaults = Settings()
    examples = {"coordinator", "label", "tls", "metrics_token_file", "join_file"}
    for name, origin in loaded.origins.items():
        top = name.partition(".")[0]
        if top not in examples and top not in {"enforcement", "node_id", "cgroup_base", "devices"}:
            assert origin == str(path), f"{name} is in the sample"
        if top not in examples and "state_dir" not in name and "socket" not in name:
            assert getattr(loaded.settings, top) == getattr(defaults, top), f"{name} shows its default"


def test_the_unit_starts_the_agent_as_it_wants_to_be_started() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read(FILES / "aliquot-agent.service")
    service = unit["Service"]
    assert service["Type"] == "notify"
    assert service["KillMode"] == "process", "stopping the agent must not end anybody's program"
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).name == "aliquot-agent"
    assert arguments[0] == "--config"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_understands_the_unit(tmp_path: Path) -> None:
    text = (FILES / "aliquot-agent.service").read_text().replace("/usr/local/bin/aliquot-agent", "/bin/true")
    path = tmp_path / "aliquot-agent.service"
    path.write_text(text)
    checked = subprocess.run(["systemd-analyze", "verify", str(path)], capture_output=True, text=True, check=False)
    assert not [line for line in checked.stderr.splitlines() if "aliquot-agent" in line], checked.stderr


async def test_systemd_is_told_when_the_agent_is_ready_alive_and_ending(
    node: Node, coordinator: Coordinator, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(30)
        node.environment |= {"NOTIFY_SOCKET": str(tmp_path / "notify"), "WATCHDOG_USEC": "200000"}
        await asyncio.to_thread(node.start, coordinator.address)
        heard = ""
        while heard.count("WATCHDOG=1") < 3:
            heard += (await asyncio.to_thread(listener.recv, 4096)).decode() + "\n"
        assert heard.startswith("READY=1\n")
        assert "2 devices" in heard
        assert await asyncio.to_thread(node.terminate) == 0
        while "STOPPING=1" not in heard:
            heard += (await asyncio.to_thread(listener.recv, 4096)).decode() + "\n"


@pytest.mark.parametrize(
    ("arguments", "environment", "code", "word"),
    [
        (["--devices", "voodoo"], {}, 2, "tpu, several of them"),
        (["--metrics-port", "many"], {}, 2, "--metrics-port"),
        (["--label", "zone"], {}, 2, "key=value"),
        (["--label", "zone=a b"], {}, 1, "label value"),
        (["--node-name", "no blanks"], {}, 1, "node_name"),
        (["--config", "/nowhere.toml"], {}, 2, "/nowhere.toml"),
        ([], {"ALIQUOT_AGENT_POLL_MEMORY": "5"}, 2, "5s"),
        ([], {"ALIQUOT_AGENT_POLL_MEMROY": "5s"}, 2, "ALIQUOT_AGENT_POLL_MEMORY"),
        (["--containment", "magic"], {}, 2, "cgroup"),
        (["--log-level", "loud"], {}, 2, "debug"),
    ],
)
def test_a_wrong_setting_is_named_with_what_was_meant(
    arguments: list[str], environment: dict[str, str], code: int, word: str, tmp_path: Path
) -> None:
    result = run("--state-dir", str(tmp_path / "state"), *arguments, **environment)
    assert (result.returncode, word in result.stderr) == (code, True), result.stderr
    assert "Traceback" not in result.stderr


async def test_a_machine_without_a_driver_is_waited_for_and_can_be_ended(tmp_path: Path) -> None:
    # What is found first where the driver's library is looked for, also on a machine that has one.
    (tmp_path / "libnvidia-ml.so.1").write_text("no library")
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    listener.bind(str(tmp_path / "notify"))
    listener.settimeout(30)
    agent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aliquot.agent", "--state-dir", str(tmp_path / "state")),
        *("--socket", str(tmp_path / "sock"), "--metrics-port", "-1"),
        stderr=asyncio.subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "NOTIFY_SOCKET": str(tmp_path / "notify")},
    )
    assert agent.stderr is not None
    line = b""
    while b"no driver yet" not in line:
        line = await agent.stderr.readline()
        assert line, "it ended"
    assert b"install the NVIDIA driver" in line
    with listener:  # `systemctl status` says what `systemctl start` waits for
        assert (await asyncio.to_thread(listener.recv, 4096)).startswith(b"STATUS=no driver yet: NVML")
    agent.send_signal(signal.SIGTERM)
    async with asyncio.timeout(30):
        assert await agent.wait() == 0


@pytest.mark.root("to become somebody without rights")
async def test_without_root_it_works_and_says_what_it_cannot_do(open_node: Node, coordinator: Coordinator) -> None:
    # The interpreter may be in a folder that others can't read: rights are given up after all was imported.
    program = (
        "import concurrent.futures.thread, encodings.ascii, encodings.idna, encodings.latin_1, os, sys\n"
        "from aliquot.agent import agent, main\n"
        "from aliquot.agent.processes import signals\n"
        "from aliquot.agent.devices import nvml\n"
        "uid = int(os.environ['TEST_UID'])\n"
        "os.setgroups([]); os.setresgid(uid, uid, uid); os.setresuid(uid, uid, uid)\n"
        "sys.exit(main.main())"
    )
    node = open_node
    os.chown(node.directory, 54321, -1)
    node.scenario_path.chmod(0o666)
    node.environment["TEST_UID"] = "54321"
    await asyncio.to_thread(node.start, coordinator.address, program=("-c", program))
    await coordinator.until(lambda: bool(coordinator.snapshots), "a snapshot")
    assert len(coordinator.snapshots[0].node.devices) == 2
    notes = node.ask_info().notes
    assert any("session and ancestry" in note and "root" in note for note in notes), notes
