"""Tests one card that nobody uses, in a process of its own: a test may hang, or take its process along.

    python -m aliquot.agent.doctor.card --uuid GPU-… --level 2

One line of JSON on standard output: `problem` (empty: well), `story` and `copy_mb_s` (null: not measured). Level 1:
its driver answers under this UUID, nothing is held of its memory, its error fields ask for nothing. Level 2 besides:
memory is allocated through the CUDA driver, filled with patterns and read back; a kernel computes what is known
beforehand; and the rate of copies within the card is measured, for whoever knows other cards of its model to judge.
Where there is no CUDA driver, and for cards of other vendors, level 2 is not run, and the story says so. With `--dcgm`
NVIDIA's own diagnostics run last, where `dcgmi` is installed: what they call a failure is one. That they can't be run
says nothing of the card.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
import time
from ctypes import byref, c_char_p, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p

from aliquot.agent.core.health import Health, on_sample
from aliquot.agent.devices.base import DeviceError
from aliquot.agent.devices.kinds import AUTO, make_backend
from aliquot.agent.doctor import fold
from aliquot.agent.enforce.by_vendor import vendor_of
from aliquot.common.cuda import Driver, DriverError, DriverMissing
from aliquot.common.quantity import parse_bytes

BASELINE_BYTES = 512 << 20
"""What a driver may keep on an idle card beside what it calls reserved."""
PIECE_BYTES = 64 << 20
PATTERNS = (0x00, 0xFF, 0xA5, 0x5A)
FILL_PERMILLE = 950
PATTERN_TIME_S = 20.0
COPY_ROUNDS, COPY_S = 4, 0.05
"""Measurements, and how long one should take at least."""
KERNEL_ROUNDS = 4
NO_COMPILER = frozenset({209, 221, 222, 223})
"""No binary for this card (it is older than Volta); no compiler, one that is older than the PTX, or none allowed."""
DIAGNOSIS_S = 50.0
"""Of each command."""
_NUMBER = re.compile(r"^\|\s*(\d+)\s*\|")
_RESULT = re.compile(r"^\|\s*([^|]+?)\s*\|\s*(Pass|Fail|Warn|Skip)\b[^|]*\|")


class Unwell(Exception):
    """The card failed its test; says how."""


def main(arguments: list[str] | None = None) -> int:
    """0 where the card is well, 1 where it is not."""
    parser = argparse.ArgumentParser(prog="python -m aliquot.agent.doctor.card", description=__doc__.splitlines()[0])
    parser.add_argument("--uuid", required=True, help="of the card, or of a MIG instance")
    parser.add_argument("--devices", default=AUTO, help="as the agent's setting")
    parser.add_argument("--level", type=int, choices=(1, 2), default=1)
    parser.add_argument("--memory", type=parse_bytes, default=0, help="test at most so much (default: 95 %% of it)")
    parser.add_argument(
        "--dcgm", type=int, choices=range(4), default=0, help="run `dcgmi diag` at this level (0: don't)"
    )
    options = parser.parse_args(arguments)
    told: list[str] = []
    problem, copy_mb_s = "", None
    try:
        whole = _level_1(options.devices, options.uuid, told)
        if options.level > 1 and whole:
            copy_mb_s = _level_2(options.uuid, options.memory, told)
        if options.dcgm and whole:
            _diagnose(options.uuid, options.dcgm, told)
    except (Unwell, DeviceError) as error:
        problem = str(error)
    said = {"problem": problem, "story": "; ".join(told), "copy_mb_s": copy_mb_s}
    sys.stdout.write(json.dumps(said) + "\n")
    return 1 if problem else 0


def _level_1(devices: str, uuid: str, told: list[str]) -> bool:
    """Whether it is a device that CUDA programs can be run on, and not a card of which they get instances only."""
    backend = make_backend(devices)
    backend.open()
    try:
        found = backend.discover()
        parts = [info for info in found.devices if uuid in (info.uuid, info.parent_uuid)]
        if not parts:
            raise Unwell(f"{backend.name} does not list it; {'; '.join(found.problems) or 'it has no problem to tell'}")
        for info in parts:
            listed = backend.processes(info.uuid)
            used = backend.memory(info.uuid).used_bytes or 0
            if listed.processes:
                raise Unwell(f"{len(listed.processes)} processes are on {info.uuid}, such as {listed.processes[0].pid}")
            if used > BASELINE_BYTES:
                raise Unwell(f"{used >> 20} MiB of {info.uuid} are held by nobody that the driver lists")
        health = on_sample(Health(), backend.health(uuid), 0)
        if not health.healthy:
            raise Unwell(health.reason)
        told.append(f"{backend.name}: {len(parts)} devices, idle, no complaint")
        whole = parts[0].uuid == uuid
        if not whole:
            told.append("memory was not tested: the card is cut into parts")
        elif vendor_of(parts[0]) != "nvidia":
            told.append(f"memory was not tested: that needs CUDA, and this is a card of {parts[0].vendor}")
            return False
        return whole
    finally:
        backend.close()


def _level_2(uuid: str, most_bytes: int, told: list[str]) -> int | None:
    """Megabytes a second that are copied within the card; None: that was not measured."""
    if os.environ.get("ALIQUOT_SIMGPU") and os.environ.get("ALIQUOT_SIMGPU_BACKED") != "1":
        told.append("memory was not tested: this simulated card has none")
        return None
    os.environ["CUDA_VISIBLE_DEVICES"] = uuid
    try:
        driver = Driver()
    except DriverMissing:
        told.append("memory was not tested: there is no CUDA driver")
        return None
    except DriverError as error:
        raise Unwell(str(error)) from error
    try:
        copy_mb_s = _check_memory(driver, most_bytes, told)
        _check_kernel(driver, told)
    except DriverError as error:
        raise Unwell(str(error)) from error
    return copy_mb_s


def _check_memory(driver: Driver, most_bytes: int, told: list[str]) -> int | None:
    free, _ = driver.memory_info()
    wanted = min(free * FILL_PERMILLE // 1000, most_bytes or free)
    pieces: list[c_uint64] = []
    while (len(pieces) + 1) * PIECE_BYTES <= wanted:
        pointer = c_uint64()
        driver.call("cuMemAlloc_v2", byref(pointer), c_size_t(PIECE_BYTES))
        pieces.append(pointer)
    if not pieces:
        raise Unwell(f"not even {PIECE_BYTES >> 20} MiB of its memory can be had, of {free >> 20} MiB that are free")
    buffer = (c_ubyte * PIECE_BYTES)()
    begun, copied, checked = time.monotonic(), 0, 0
    for number, pattern in enumerate(PATTERNS):
        expected = bytes([pattern]) * PIECE_BYTES
        for pointer in pieces:
            driver.call("cuMemcpyHtoD_v2", pointer, expected, c_size_t(PIECE_BYTES))
            copied += PIECE_BYTES
        for index, pointer in enumerate(pieces):
            # Of a large card each pattern is read back from a part of it, another one each time.
            if time.monotonic() - begun > PATTERN_TIME_S and (index + number) % len(PATTERNS):
                continue
            ctypes.memset(buffer, ~pattern & 0xFF, PIECE_BYTES)
            driver.call("cuMemcpyDtoH_v2", buffer, pointer, c_size_t(PIECE_BYTES))
            copied += PIECE_BYTES
            if memoryview(buffer).cast("B") != expected:
                raise Unwell(f"memory gives back other bytes than the pattern {pattern:#04x} that was written")
            checked += 1
    took_s = max(1e-9, time.monotonic() - begun)
    copy_mb_s = _copy_rate(driver, *pieces[:2]) if len(pieces) > 1 else None
    for pointer in pieces:
        driver.call("cuMemFree_v2", pointer)
    told.append(
        f"memory: {len(pieces) * PIECE_BYTES >> 20} MiB filled with {len(PATTERNS)} patterns, {checked} pieces read "
        f"back right, {copied / took_s / 1e9:.1f} GB/s with the checks"
        + (f", {copy_mb_s / 1e3:.1f} GB/s within the card" if copy_mb_s else "")
    )
    return copy_mb_s


def _copy_rate(driver: Driver, first: c_uint64, second: c_uint64) -> int:
    """Megabytes a second from one piece of the card's memory to another: the better of some measurements, because what
    disturbs one only makes it slower.
    """
    best_s, copies = float("inf"), 4
    for _ in range(COPY_ROUNDS):
        driver.synchronize()
        begun = time.monotonic()
        for _ in range(copies):
            driver.call("cuMemcpyDtoD_v2", second, first, c_size_t(PIECE_BYTES))
        driver.synchronize()
        took_s = max(1e-9, time.monotonic() - begun)
        best_s = min(best_s, took_s / copies)
        if took_s < COPY_S:
            copies *= 4
    return round(PIECE_BYTES / best_s / 1e6)


def _check_kernel(driver: Driver, told: list[str]) -> None:
    """Have it compute what is known beforehand, some times over."""
    module, function, out = c_void_p(), c_void_p(), c_uint64()
    code = driver.code_of("cuModuleLoadData", byref(module), c_char_p(fold.PTX))
    if code in NO_COMPILER:
        told.append(f"no kernel was run: the driver can't compile one here (CUDA error {code})")
        return
    if code:
        raise DriverError("cuModuleLoadData", code)
    driver.call("cuModuleGetFunction", byref(function), module, c_char_p(fold.NAME))
    wanted = fold.expected()
    driver.call("cuMemAlloc_v2", byref(out), c_size_t(len(wanted)))
    values = (out, c_uint(fold.THREADS), c_uint(fold.ROUNDS))
    parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
    buffer = (c_ubyte * len(wanted))()
    blocks, block, one = c_uint(fold.THREADS // fold.BLOCK), c_uint(fold.BLOCK), c_uint(1)
    for _ in range(KERNEL_ROUNDS):
        driver.call("cuMemsetD8_v2", out, c_ubyte(0), c_size_t(len(wanted)))
        driver.call("cuLaunchKernel", function, blocks, one, one, block, one, one, c_uint(0), None, parameters, None)
        driver.synchronize()
        driver.call("cuMemcpyDtoH_v2", buffer, out, c_size_t(len(wanted)))
        if (got := bytes(buffer)) != wanted:
            wrong = sum(got[at : at + 4] != wanted[at : at + 4] for at in range(0, len(wanted), 4))
            raise Unwell(f"it computes wrongly: {wrong} of {fold.THREADS} results are not what they must be")
    driver.call("cuMemFree_v2", out)
    told.append("a kernel computed right")


def _diagnose(uuid: str, level: int, told: list[str]) -> None:
    """What `dcgmi` says. Its table is read: exit codes and JSON differ from one version to the next."""
    program = shutil.which("dcgmi")
    if program is None:
        return
    try:
        listed = _said(program, "discovery", "-l")
        number = _number_of(uuid, listed)
        said = listed if number is None else _said(program, "diag", "-r", str(level), "-i", number)
    except (OSError, subprocess.TimeoutExpired) as error:
        told.append(f"dcgmi could not test it: {error}")
        return
    rows = [_RESULT.match(line) for line in said.splitlines()] if number is not None else []
    results = {row[1].strip(): row[2].lower() for row in rows if row is not None}
    failed = [name for name, result in results.items() if result == "fail"]
    if failed:
        raise Unwell(f"dcgmi diag -r {level}: failed: {', '.join(failed[:8])}")
    passed = sum(result == "pass" for result in results.values())
    if passed:
        told.append(f"dcgmi diag -r {level}: {passed} tests passed")
    else:
        last = said.strip().rpartition("\n")[2][:200]
        told.append(f"dcgmi could not test it: {last or 'it said nothing'}")


def _number_of(uuid: str, listed: str) -> str | None:
    """By which DCGM knows a card: what stands before its UUID in its list."""
    number = None
    for line in listed.splitlines():
        if (row := _NUMBER.match(line)) is not None:
            number = row[1]
        if uuid in line:
            return number
    return None


def _said(*command: str) -> str:
    done = subprocess.run(  # noqa: S603 - NVIDIA's own
        command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=DIAGNOSIS_S, check=False
    )
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main())
