"""Stands in for nvidia-cuda-mps-control: the same commands, a daemon that is a file in the pipe directory.

It speaks the text commands (protocol 2) and, unless FAKE_MPS_PROTOCOL is 2, `module verb` (protocol 3). Where GPUs are
simulated, their driver reads the files `control` that stand for sockets, and clients are those that it has taken in.
"""

# ruff: noqa: T201, C901, PLR0912

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

DEFAULT = {"limit": "", "percentage": 100, "servers": {"4711": []}, "terminated": []}
DEFAULT_SPACE = {"pinned-memory-limit": "", "active-thread-percentage": "100"}
PIPE = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/run/nvidia-mps"))
STATE = PIPE / "daemon.json"
SIMULATED = os.environ.get("ALIQUOT_SIMGPU", "")
USAGE = "usage: nvidia-cuda-mps-control [-d | -f]"


def main() -> int:
    words = sys.argv[1:]
    protocol = "3" if "3" in words else "2"
    if "--help" in words:
        print(USAGE if os.environ.get("FAKE_MPS_PROTOCOL") == "2" else f"{USAGE} [-p, --protocol <2|3>]")
        return 0
    if protocol == "3" and os.environ.get("FAKE_MPS_PROTOCOL") == "2":
        print(USAGE)
        return 1
    if "-d" in words:
        if STATE.exists():
            print("An instance of this daemon is already running")
            return 1
        number = int.from_bytes(os.urandom(3), "big") + 1
        daemon: dict[str, Any] = DEFAULT | {"protocol": protocol, "named": {}, "number": number}
        if SIMULATED and protocol == "2":
            daemon["servers"] = {str(number): []}
        keep(daemon)
        return 0
    if not STATE.exists():
        print(f"Cannot find MPS control daemon process in {PIPE}")
        return 1
    before = STATE.read_text()
    daemon = json.loads(before)
    if words and daemon["protocol"] != "3":
        print(USAGE)
        return 1
    code = named(daemon, words) if words else texts(daemon)
    if STATE.exists() and json.dumps(daemon) != before:
        keep(daemon)
    return code


def keep(daemon: dict[str, Any]) -> None:
    STATE.write_text(json.dumps(daemon))
    if daemon["protocol"] == "2":
        terms(PIPE, daemon["number"], daemon["limit"], daemon["percentage"])
        return
    for server, of in daemon["named"].items():
        terms(PIPE / server, of["number"], "", 100)
        for name, space in of["namespaces"].items():
            terms(PIPE / server / name, of["number"], space["pinned-memory-limit"], space["active-thread-percentage"])


def terms(pipe: Path, server: int, limit: str, percent: object) -> None:
    pipe.mkdir(parents=True, exist_ok=True)
    fresh = pipe / "control.new"
    fresh.write_text(f"{server} {limit.removesuffix('M') or 0} {percent}\n")
    fresh.replace(pipe / "control")


def clients(daemon: Mapping[str, Any], server: str) -> list[int]:
    if not SIMULATED:
        return list(daemon["servers"].get(server, []))
    from aliquot.simgpu import Scenario

    with Scenario(SIMULATED) as scenario:
        found = [each for device in scenario.devices() for each in device.processes if str(each.mps_server) == server]
    return [each.pid for each in found]


def terminate(daemon: dict[str, Any], pid: int) -> None:
    daemon["terminated"].append(pid)
    if SIMULATED:
        from aliquot.simgpu import Scenario

        with Scenario(SIMULATED) as scenario:
            scenario.end_mps_client(pid)


def texts(daemon: dict[str, Any]) -> int:
    """Protocol 2."""
    for line in sys.stdin:
        words = line.split()
        match words:
            case ["quit", *_]:
                gone()
                return 0
            case ["get_server_list"]:
                print("\n".join(daemon["servers"]))
            case ["get_server_status", server]:
                print(daemon.get("states", {}).get(server, "ACTIVE"))
            case ["get_client_list", server]:
                print("\n".join(map(str, clients(daemon, server))))
            case ["terminate_client", server, pid] if server in daemon["servers"]:
                terminate(daemon, int(pid))
            case ["set_default_device_pinned_mem_limit", "0", value]:
                daemon["limit"] = value
            case ["get_default_device_pinned_mem_limit", "0"]:
                print(daemon["limit"])
            case ["set_default_active_thread_percentage", value]:
                daemon["percentage"] = int(value)
                print(f"{float(value)}")
            case _:
                print(f"Invalid command: {line.strip()}")
    return 0


def gone() -> None:
    STATE.unlink()
    for path in PIPE.rglob("control"):
        path.unlink()


def named(daemon: dict[str, Any], words: list[str]) -> int:
    """Protocol 3."""
    options = dict(word.removeprefix("--").split("=", 1) for word in words if word.startswith("--") and "=" in word)
    servers, server = daemon["named"], options.get("server", "")
    match [word for word in words if not word.startswith("--")]:
        case ["-q"]:
            gone()
        case ["server", "create", name]:
            # One for a device that is not there is made too, and its clients run without any limit.
            number = int.from_bytes(os.urandom(3), "big") + 1
            servers[name] = {"number": number, "devices": options["allowed-devices"], "namespaces": {}}
        case ["server", "list"]:
            for name, of in servers.items():
                state = daemon.get("states", {}).get(name, "Ready")
                print(f"{name},0,{of['number']},{state},{PIPE / name},{of['devices']},-")
        case ["namespace", "create", name] if server in servers and name not in servers[server]["namespaces"]:
            servers[server]["namespaces"][name] = DEFAULT_SPACE
        case ["namespace", "list"] if server in servers:
            for name, space in {"default": DEFAULT_SPACE, **servers[server]["namespaces"]}.items():
                limits = f"{space['pinned-memory-limit'] or '-'},{space['active-thread-percentage']}"
                print(f"{name},{server},Ready,{limits},0,{PIPE / server / name}")
        case ["namespace", "set", name] if name in servers.get(server, {}).get("namespaces", {}):
            servers[server]["namespaces"][name] |= options
        case ["namespace", "get", name, server, field] if name in servers.get(server, {}).get("namespaces", {}):
            print(servers[server]["namespaces"][name][field])
        case ["namespace", "delete", name] if name in servers.get(server, {}).get("namespaces", {}):
            del servers[server]["namespaces"][name]
            shutil.rmtree(PIPE / server / name, ignore_errors=True)
        case ["client", "list"]:
            for name, of in servers.items():
                for pid in clients(daemon, str(of["number"])):
                    print(f"{pid},{name},0,default,program")
        case ["client", "terminate", pid]:
            terminate(daemon, int(pid))
        case _:
            print(f"Error: invalid command {' '.join(words)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
