"""A service for tests, installed as a distribution of its own, and what it is told to do wrong."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from aliquot.v1 import agent_pb2, types_pb2
from tests.agent.harness import Node, desired

SERVICE = '''
import asyncio, ctypes, json, os, subprocess, sys, tempfile, time

FOLDER = {folder!r}

def told(word):
    return os.path.exists(os.path.join(FOLDER, word))

def memory_total():
    """Of the first device, as CUDA's driver says it to this process."""
    cuda, free, total = ctypes.CDLL("libcuda.so.1"), ctypes.c_size_t(), ctypes.c_size_t()
    device, context = ctypes.c_int(), ctypes.c_void_p()
    cuda.cuInit(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuCtxCreate_v2(ctypes.byref(context), 0, device)
    cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total))
    return total.value

class Echo:
    """Tells whoever connects what it was started with. Files in a folder tell it what to do."""

    async def start(self):
        while told("slow"):
            await asyncio.sleep(0.02)
        if told("broken"):
            raise RuntimeError("the framework is not there\\n" + "x" * 5000)
        if told("family"):
            away = "import os, time; os.fork() and os._exit(0); os.setsid(); time.sleep(600)"
            for script in ("import time; time.sleep(600)", away):
                subprocess.Popen([sys.executable, "-c", script], start_new_session=True)
        self.server = await asyncio.start_server(self.answer, "127.0.0.1", 0)
        if told("busy"):
            asyncio.get_running_loop().call_later(0.01, self.compute)
        port = self.server.sockets[0].getsockname()[1]
        return f"127.0.0.1:{{port}}"

    def compute(self):
        open(os.path.join(FOLDER, "computes"), "w").close()
        time.sleep(3600)

    async def answer(self, reader, writer):
        keys = ("ALIQUOT_LEASE_ID", "ALIQUOT_MEMBER", "CUDA_VISIBLE_DEVICES", "ALIQUOT_TIER", "LD_PRELOAD", "HOME")
        said = {{key: os.environ.get(key, "") for key in keys}} | {{"pid": os.getpid(), "uid": os.getuid()}}
        said["gids"] = [os.getgid(), *os.getgroups()]
        if "preload" in said["ALIQUOT_TIER"]:
            said["memory_total"] = memory_total()
        said["oom_score_adj"] = int(open("/proc/self/oom_score_adj").read())
        with tempfile.NamedTemporaryFile() as file:
            said["temporary"] = file.name
        writer.write(json.dumps(said).encode() + b"\\n")
        await writer.drain()
        writer.close()

    async def stop(self):
        open(os.path.join(FOLDER, "stopped"), "w").close()
        self.server.close()

def prepare():
    with open(os.path.join(FOLDER, "prepared"), "a") as file:
        file.write(f"{{os.getpid()}}\\n")

if told("prepares"):
    Echo.prepare = staticmethod(prepare)
'''


def install(node: Node, folder: Path) -> Node:
    """A node whose agent finds the service `remote`, which looks into the folder for what to do."""
    site = folder / "site"
    about = site / "echo_service-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: echo-service\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[aliquot.hosts]\nremote = echo_service:Echo\n")
    (site / "echo_service.py").write_text(SERVICE.format(folder=str(folder)))
    node.environment["PYTHONPATH"] = str(site)
    node.environment["ALIQUOT_AGENT_HOSTING_SERVICES"] = "all"
    node.environment["ALIQUOT_AGENT_HOSTING_USER"] = str(os.geteuid())
    node.environment["ALIQUOT_AGENT_HOSTING_AHEAD"] = "false"  # what is in its folders is the leases' alone
    return node


def remote(device_uuid: str, **changed: object) -> agent_pb2.DesiredSlice:
    """A slice that is to be served."""
    piece = desired(device_uuid, **changed)  # type: ignore[arg-type]
    piece.serve = types_pb2.SERVE_REMOTE
    return piece


def ask(endpoint: str) -> dict[str, object]:
    """What the service says of itself."""
    host, _, port = endpoint.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        told: dict[str, object] = json.loads(connection.makefile().readline())
        return told


def pid_of(told: dict[str, object]) -> int:
    """Of the service."""
    pid = told["pid"]
    assert isinstance(pid, int)
    return pid
