"""Simulated GPUs from the command line.

    python -m aliquot.simgpu create /tmp/gpus --models A100-40,A100-40,T4 --host node1
    eval "$(python -m aliquot.simgpu env /tmp/gpus)" && nvitop
    python -m aliquot.simgpu lose /tmp/gpus 2

Every command takes the scenario file first and a device by index or UUID; `--json` prints the state afterwards as
JSON. Exit codes: 0 done, 1 refused (with the reason), 2 wrong arguments.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable

import msgspec

from aliquot.common.errors import AliquotError
from aliquot.common.quantity import human_bytes, parse_bytes
from aliquot.simgpu.burn import bytes_of
from aliquot.simgpu.faults import CALL_CLASSES
from aliquot.simgpu.libraries import environment
from aliquot.simgpu.models import MODELS
from aliquot.simgpu.scenario import Scenario, create
from aliquot.simgpu.snapshot import DeviceState

Action = Callable[[Scenario, argparse.Namespace], None]

_SETTINGS = {
    "utilization": ("gpu_percent", "percent, or auto"),
    "temperature": ("temperature_c", "degrees Celsius, or auto"),
    "memory-temperature": ("memory_temperature_c", "degrees Celsius, or auto"),
    "power": ("power_mw", "milliwatts, or auto"),
    "fan": ("fan_percent", "percent; auto: no fan"),
    "throttle": ("throttle_reasons", "mask of clock event reasons"),
    "recovery": ("recovery_action", "recovery action, 0: none"),
    "remap-pending": ("remap_pending", "0 or 1"),
    "compute-mode": ("compute_mode", "0 default, 2 prohibited, 3 exclusive"),
    "mig": ("mig_mode", "0 or 1"),
    "context-bytes": ("context_bytes", "cost of a context"),
    "kernel-ns": ("kernel_ns", "time of a kernel"),
    "memory-unknown": ("processes_memory_unknown", "0 or 1"),
}
"""What `set` changes: the field of the device's record, and what its value is."""


def main(arguments: list[str] | None = None) -> int:
    """Runs one command; its exit code."""
    options = _parser().parse_args(arguments)
    try:
        if options.command == "env":
            values = environment(options.path)
            sys.stdout.writelines(f"export {name}={shlex.quote(value)}\n" for name, value in values.items())
            return 0
        with _open(options) as scenario:
            options.action(scenario, options)
            _report(scenario, as_json=options.json)
    except AliquotError as error:
        sys.stderr.write(f"simgpu: {error.explain()}\n")
        return 1
    return 0


def _open(options: argparse.Namespace) -> Scenario:
    if options.command == "create":
        return create(options.path, options.models, host=options.host, driver_version=options.driver)
    return Scenario(options.path)


def _set(scenario: Scenario, options: argparse.Namespace) -> None:
    value = None if options.value == "auto" else parse_bytes(options.value)
    if options.what == "mig":
        scenario.set_mig_mode(options.device, enabled=bool(value))
    elif options.what == "recovery":
        scenario.set_recovery_action(options.device, value or 0)
    else:
        scenario.set(options.device, **{_SETTINGS[options.what][0]: value})


def _foreign(scenario: Scenario, options: argparse.Namespace) -> None:
    if options.remove:
        scenario.remove_foreign(options.device, options.pid)
        return
    scenario.add_foreign(
        options.device,
        options.bytes,
        pid=options.pid,
        name=options.name,
        memory_unknown=options.unknown,
        sm_percent=options.percent,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m aliquot.simgpu", description="Control simulated GPUs.")
    commands = parser.add_subparsers(dest="command", required=True)

    def command(name: str, text: str, action: Action, *, device: bool = True) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=text)
        added.add_argument("path", help="the scenario file")
        if device:
            added.add_argument("device", type=_device, help="index or UUID")
        added.add_argument("--json", action="store_true", help="print the state afterwards as JSON")
        added.set_defaults(action=action)
        return added

    def fault(name: str, text: str, action: Action) -> argparse.ArgumentParser:
        added = command(name, text, action, device=False)
        added.add_argument("call", help=f"a symbol, '*' or one of: {' '.join(CALL_CLASSES)}")
        added.add_argument("--device", type=_device, help="index or UUID (default: all)")
        return added

    made = command("create", "make a machine", _nothing, device=False)
    made.add_argument("--models", type=_models, default=["A100-40"] * 4, help=f"of {', '.join(MODELS)}; as A100-40,T4")
    made.add_argument("--host", default="simulated", help="UUIDs follow from it (default %(default)s)")
    made.add_argument("--driver", default="615.71.05", help="driver version (default %(default)s)")
    command("show", "print the state", _nothing, device=False)
    command("env", "print the variables that make programs use the scenario", _nothing, device=False)
    changed = command("set", "change a sensor or a mode", _set)
    settings = "; ".join(f"{name} ({text})" for name, (_, text) in _SETTINGS.items())
    changed.add_argument("what", choices=_SETTINGS, metavar="WHAT", help=settings)
    changed.add_argument("value", help="a number, as 50 or 4Gi; auto: what follows from the load")
    command("lose", "let a device fall off the bus", lambda s, o: s.lose(o.device))
    command("restore", "bring a lost device back", lambda s, o: s.restore(o.device))
    command("reset", "reset a device", lambda s, o: s.reset(o.device))
    event = command("xid", "raise an XID event", lambda s, o: s.raise_xid(o.device, o.xid))
    event.add_argument("xid", type=int)
    errors = command(
        "ecc", "count memory errors", lambda s, o: s.add_ecc_errors(o.device, corrected=o.sbe, uncorrected=o.dbe)
    )
    errors.add_argument("--sbe", type=int, default=0, help="corrected (single bit)")
    errors.add_argument("--dbe", type=int, default=0, help="uncorrected (double bit)")
    foreign = command("foreign", "add or remove a process that is not simulated", _foreign)
    foreign.add_argument("--bytes", type=bytes_of, default=1 << 30, help="memory it holds (default 1Gi)")
    foreign.add_argument("--pid", type=int, help="of a living process (default: one that exists only here)")
    foreign.add_argument("--name", default="foreign")
    foreign.add_argument("--percent", type=int, default=0, help="its load on the device")
    foreign.add_argument("--unknown", action="store_true", help="NVML answers N/A for its memory")
    foreign.add_argument("--remove", action="store_true", help="remove the process --pid")
    latency = fault("latency", "make calls slow", lambda s, o: s.set_latency(o.call, o.microseconds * 1000, o.device))
    latency.add_argument("microseconds", type=int)
    command("latencies", "make calls as slow as measured", lambda s, o: s.set_measured_latencies(), device=False)
    fault("hang", "let calls block", lambda s, o: s.hang(o.call, o.device))
    fault("unhang", "let blocked calls go on", lambda s, o: s.unhang(o.call, o.device))
    failing = fault("fail", "make calls fail", lambda s, o: s.fail(o.call, o.error, o.device))
    failing.add_argument("error", type=int, help="nvmlReturn_t or CUresult; 0 ends it")
    command("clear", "end all latencies, hangs and errors", lambda s, o: s.clear_faults(), device=False)
    return parser


def _nothing(scenario: Scenario, options: argparse.Namespace) -> None:
    """For the commands that only report."""


def _device(text: str) -> int | str:
    return int(text) if text.isdecimal() else text


def _models(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _report(scenario: Scenario, *, as_json: bool) -> None:
    devices, rules = scenario.devices(), scenario.faults()
    if as_json:
        sys.stdout.write(msgspec.json.encode({"devices": devices, "faults": rules}).decode() + "\n")
        return
    for device in devices:
        sys.stdout.write(_line(device) + "\n")
        for process in device.processes:
            held = "N/A" if process.memory_unknown else human_bytes(process.memory_bytes + process.managed_bytes)
            sys.stdout.write(f"      {process.pid:>8}  {held:>10}  {process.name}\n")
    for rule in rules:
        where = "all devices" if rule.device is None else f"device {rule.device}"
        what = [f"{rule.latency_ns / 1000:g} us"] if rule.latency_ns else []
        what += ["hangs"] if rule.hang else []
        what += [f"error {rule.error}"] if rule.error else []
        sys.stdout.write(f"fault  {rule.call} on {where}: {', '.join(what)}\n")


def _line(device: DeviceState) -> str:
    notes = [note for note, holds in (("LOST", device.lost), ("MIG", device.mig_mode)) if holds]
    used, total = human_bytes(device.used_bytes), human_bytes(device.total_bytes)
    return f"{device.index:>3}  {device.name:<24} {device.uuid}  {used:>10} / {total}  {' '.join(notes)}".rstrip()
