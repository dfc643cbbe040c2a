"""A device backend in a process of its own, as an agent has it: asked by lines of JSON on standard input.

    {"call": "memory", "uuid": "GPU-…"}   →   {"answer": …} or {"error": "DeviceLost", "message": "…"}

What is raised and is no `DeviceError` ends the process: that is a defect of the backend.
"""

from __future__ import annotations

import json
import sys
from typing import Any

import msgspec

from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.kinds import make_backend


def main() -> None:
    """Until standard input ends."""
    backend = make_backend(sys.argv[1])
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if asked["call"] == "visibility":
                found = {info.uuid: info for info in backend.discover().devices}
                answer: Any = backend.visibility([found[uuid] for uuid in asked["uuids"]])
            else:
                call = getattr(backend, asked["call"])
                answer = call(*([asked["uuid"]] if "uuid" in asked else []))
        except DeviceError as error:
            said: dict[str, Any] = {"error": type(error).__name__, "message": error.message}
        else:
            said = {"answer": msgspec.to_builtins(answer, str_keys=True)}
        sys.stdout.write(json.dumps(said) + "\n")
        sys.stdout.flush()


main()
