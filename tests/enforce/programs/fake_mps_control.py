"""Stands in for nvidia-cuda-mps-control: the same text commands, a daemon that is a file in the pipe directory."""

# ruff: noqa: T201

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

DEFAULT = {"limit": "", "percentage": 100, "servers": {"4711": []}}


def main() -> int:
    pipe = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
    state = pipe / "daemon.json"
    if "-d" in sys.argv:
        if state.exists():
            print("An instance of this daemon is already running")
            return 1
        state.write_text(json.dumps(DEFAULT))
        return 0
    if not state.exists():
        print(f"Cannot find MPS control daemon process in {pipe}")
        return 1
    before = state.read_text()
    daemon = json.loads(before)
    for line in sys.stdin:
        words = line.split()
        match words:
            case ["quit", *_]:
                state.unlink()
                return 0
            case ["get_server_list"]:
                print("\n".join(daemon["servers"]))
            case ["get_server_status", server]:
                print(daemon.get("states", {}).get(server, "ACTIVE"))
            case ["get_client_list", server]:
                print("\n".join(map(str, daemon["servers"].get(server, []))))
            case ["set_default_device_pinned_mem_limit", "0", value]:
                daemon["limit"] = value
            case ["get_default_device_pinned_mem_limit", "0"]:
                print(daemon["limit"])
            case ["set_default_active_thread_percentage", value]:
                daemon["percentage"] = int(value)
                print(f"{float(value)}")
            case _:
                print(f"Invalid command: {line.strip()}")
    if json.dumps(daemon) != before:
        state.write_text(json.dumps(daemon))
    return 0


if __name__ == "__main__":
    sys.exit(main())
