"""A reader of the Container Device Interface, as container runtimes have one: what it refuses they refuse as well.

Rules are those of the published specification, 0.3 to 1.0: which fields there are, since which version, how names look,
and how a description changes the configuration of an OCI container.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

VERSIONS = ("0.3.0", "0.4.0", "0.5.0", "0.6.0", "0.7.0", "0.8.0", "1.0.0")
HOOKS = ("prestart", "createRuntime", "createContainer", "startContainer", "poststart", "poststop")
_VENDOR = re.compile(r"[A-Za-z]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_CLASS = re.compile(r"[A-Za-z]([A-Za-z0-9_-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.:-]*[A-Za-z0-9])?")
_EDITS = {"env", "deviceNodes", "mounts", "hooks", "additionalGids", "intelRdt"}
_MOUNT = {"hostPath", "containerPath", "options", "type"}
_NODE = {"path", "hostPath", "type", "major", "minor", "fileMode", "permissions", "uid", "gid"}
_HOOK = {"hookName", "path", "args", "env", "timeout"}


class BadDescription(Exception):
    """A runtime would not take this file."""


def check(spec: dict[str, Any], newest: str = VERSIONS[-1]) -> None:
    """Raises `BadDescription`. `newest`: the latest version that the runtime knows."""
    _only(spec, {"cdiVersion", "kind", "devices", "containerEdits", "annotations"}, "the description")
    version = spec.get("cdiVersion")
    if version not in VERSIONS[: VERSIONS.index(newest) + 1]:
        raise BadDescription(f"version {version} is not known")
    vendor, _, cls = str(spec.get("kind")).partition("/")
    if not _VENDOR.fullmatch(vendor) or not _CLASS.fullmatch(cls):
        raise BadDescription(f"kind {spec.get('kind')} is no vendor/class")
    devices = spec.get("devices") or []
    if not devices:
        raise BadDescription("it describes no device")
    names = [device.get("name") for device in devices]
    if len(set(names)) != len(names):
        raise BadDescription("a name is there twice")
    for device in devices:
        _only(device, {"name", "containerEdits", "annotations"}, "a device")
        if not _DEVICE.fullmatch(str(device["name"])):
            raise BadDescription(f"{device['name']} is no device's name")
        if not any(device.get("containerEdits", {}).values()):
            raise BadDescription(f"device {device['name']} changes nothing")
        _check_edits(device["containerEdits"])
    _check_edits(spec.get("containerEdits") or {})
    if VERSIONS.index(str(version)) < VERSIONS.index(least_version(spec)):
        raise BadDescription(f"what it says needs version {least_version(spec)}, and it is of {version}")


def least_version(spec: dict[str, Any]) -> str:
    """The least version in which all that a description says is known."""
    edits = [spec.get("containerEdits") or {}, *(each["containerEdits"] for each in spec["devices"])]
    found = {"0.3.0"}
    for each in edits:
        found |= {"0.4.0" for mount in each.get("mounts", ()) if "type" in mount}
        found |= {"0.5.0" for node in each.get("deviceNodes", ()) if "hostPath" in node}
        found |= {"0.7.0" for key in ("intelRdt", "additionalGids") if each.get(key)}
    found |= {"0.5.0" for device in spec["devices"] if device["name"][0].isdigit()}
    found |= {"0.6.0" for each in (spec, *spec["devices"]) if each.get("annotations")}
    if "." in spec["kind"].partition("/")[2]:
        found.add("0.6.0")
    return max(found, key=VERSIONS.index)


def edits_for(folder: Path, devices: Iterable[str], newest: str = VERSIONS[-1]) -> list[dict[str, Any]]:
    """What these devices (`vendor/class=name`) change, in order. Raises `BadDescription` where one isn't described."""
    known: dict[str, dict[str, Any]] = {}
    common: dict[str, dict[str, Any]] = {}
    conflicts = set()
    for path in sorted((*folder.glob("*.json"), *folder.glob("*.yaml"))):
        spec = json.loads(path.read_text(encoding="utf-8"))
        check(spec, newest)
        for device in spec["devices"]:
            name = f"{spec['kind']}={device['name']}"
            if name in known:
                conflicts.add(name)
            known[name] = device["containerEdits"]
            common[name] = spec.get("containerEdits") or {}
    found: list[dict[str, Any]] = []
    for name in devices:
        if name not in known or name in conflicts:
            raise BadDescription(f"unresolvable CDI devices {name}")
        found += [each for each in (common[name], known[name]) if each and each not in found]
    return found


def apply(edits: Iterable[dict[str, Any]], config: dict[str, Any]) -> None:
    """Change the configuration of an OCI container: variables replace those of their name, mounts those of their place,
    and mounts go from the outside in.
    """
    for each in edits:
        process = config["process"]
        variables = dict(pair.split("=", 1) for pair in process.setdefault("env", []))
        variables |= dict(pair.split("=", 1) for pair in each.get("env", ()))
        process["env"] = [f"{key}={text}" for key, text in variables.items()]
        for mount in each.get("mounts", ()):
            if not Path(mount["hostPath"]).exists():
                raise BadDescription(f"{mount['hostPath']} is not there to be mounted")
            mounts = [one for one in config["mounts"] if one["destination"] != mount["containerPath"]]
            mounted = {"destination": mount["containerPath"], "source": mount["hostPath"], "type": "bind"}
            config["mounts"] = [*mounts, mounted | {"options": mount.get("options") or ["bind"]}]
        config["mounts"].sort(key=lambda one: one["destination"].rstrip("/").count("/"))
        for hook in each.get("hooks", ()):
            told = {key: value for key, value in hook.items() if key != "hookName"}
            config.setdefault("hooks", {}).setdefault(hook["hookName"], []).append(told)
        for node in each.get("deviceNodes", ()):
            config["linux"].setdefault("devices", []).append({**node, "path": node["path"]})


def _check_edits(edits: dict[str, Any]) -> None:
    _only(edits, _EDITS, "containerEdits")
    for pair in edits.get("env", ()):
        if pair.find("=") <= 0:
            raise BadDescription(f"{pair} is no variable")
    for mount in edits.get("mounts", ()):
        _only(mount, _MOUNT, "a mount")
        if not mount.get("hostPath", "").startswith("/") or not mount.get("containerPath", "").startswith("/"):
            raise BadDescription("a mount lacks one of its paths")
        if not all(isinstance(option, str) for option in mount.get("options", ())):
            raise BadDescription("options of a mount are words")
    for node in edits.get("deviceNodes", ()):
        _only(node, _NODE, "a device node")
        if not node.get("path"):
            raise BadDescription("a device node lacks its path")
    for hook in edits.get("hooks", ()):
        _only(hook, _HOOK, "a hook")
        if hook.get("hookName") not in HOOKS or not hook.get("path"):
            raise BadDescription("a hook of no known name, or with nothing to run")


def _only(found: dict[str, Any], known: set[str], what: str) -> None:
    """Readers decode strictly: a field that they don't know makes all of the file unreadable."""
    if not found.keys() <= known:
        raise BadDescription(f"{what} has {', '.join(sorted(found.keys() - known))}, which nobody knows")
