"""What the enforcement tiers do on a real GPU: run by hand on a machine that has one, as root.

    python bench/hardware.py [--lease 8Gi] [--output results.json]

Needs no installation in a checkout: Python 3.11 or newer with nvidia-ml-py and msgspec, a C compiler (or the compiled
library in agent/aliquot/agent/native/lib). `make bundle` brings it to machines without a network. PyTorch, CuPy and
nvidia-cuda-mps-control are used if installed. Nothing about the machine is changed: no compute mode, no MIG mode, no
clocks. The sections are independent: one that fails says why, and the others go on. The last line of standard output is
one JSON object; `--output` has it after each section.
"""

# It must run even if half of its requirements are missing, so it imports late and catches everything.
# ruff: noqa: ANN401, BLE001, D103, PLC0415

from __future__ import annotations

import argparse
import json
import platform
import signal
import statistics
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.lib.hardware_lease import GIB, Bench, Lease, ended_after, missing, plain_environment, run_json
from bench.lib.hardware_programs import CUPY, TORCH, TRAINING
from bench.lib.hardware_slowdown import MpsDaemon, Unavailable, mps_daemon, slowdown


def main() -> int:
    options = _parse()
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d", time.gmtime()), "python": platform.python_version()}
    with tempfile.TemporaryDirectory(prefix="aliquot-hardware-") as scratch:
        bench = Bench(Path(scratch), options.lease)
        for name in options.only or SECTIONS:
            begun = time.monotonic()
            try:
                results[name] = SECTIONS[name](bench)
            except Exception as error:
                traceback.print_exc()
                results[name] = {"failed": f"{type(error).__name__}: {error}"}
            print(f"{name}: {time.monotonic() - begun:.1f} s", file=sys.stderr, flush=True)
            if options.output:  # now, since a later section may hang until somebody ends this
                options.output.write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lease", type=lambda text: int(text.removesuffix("Gi")) * GIB, default=8 * GIB)
    parser.add_argument("--only", action="append", choices=sorted(SECTIONS), help="run these sections only")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--json", action="store_true", help="the last line is JSON in any case")
    return parser.parse_args()


# ------------------------------------------------------------------------------------------------------------ discovery


def discovery(bench: Bench) -> dict[str, Any]:
    """What is here, and what NVML's calls cost."""
    nvml, handle = bench.nvml, bench.handle
    memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)

    def cost_us(call: Callable[[], object], times: int = 50) -> float:
        samples = []
        for _ in range(times):
            begun = time.perf_counter()
            call()
            samples.append((time.perf_counter() - begun) * 1e6)
        return round(statistics.median(samples), 1)

    def ask(call: Callable[[], Any]) -> Any:
        try:
            found = call()
            return found.decode() if isinstance(found, bytes) else found
        except nvml.NVMLError as error:
            return str(error)

    return {
        "device": ask(lambda: nvml.nvmlDeviceGetName(handle)),
        "driver": ask(nvml.nvmlSystemGetDriverVersion),
        "cuda": ask(nvml.nvmlSystemGetCudaDriverVersion),
        "kernel": platform.release(),
        "total_bytes": memory.total,
        "reserved_bytes": memory.reserved,
        "compute_mode": ask(lambda: nvml.nvmlDeviceGetComputeMode(handle)),
        "mig_mode": ask(lambda: nvml.nvmlDeviceGetMigMode(handle)),
        "cgroup2": [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines() if " cgroup2 " in line],
        "pid_namespace": str(Path("/proc/self/ns/pid").readlink()),
        "memory_limits_call": hasattr(nvml, "nvmlDeviceSetMemoryLimits_v1")
        or hasattr(nvml, "nvmlDeviceSetMemoryLimits"),
        "processes_us": cost_us(lambda: nvml.nvmlDeviceGetComputeRunningProcesses(handle)),
        "memory_us": cost_us(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)),
        "utilisation_us": cost_us(lambda: nvml.nvmlDeviceGetUtilizationRates(handle)),
        "backend": backend_discovery(),
    }


def backend_discovery() -> Any:
    """The agent's own view, where its modules can be loaded here."""
    try:
        from aliquot.agent.devices.nvml import NvmlBackend

        backend = NvmlBackend()
        driver = backend.open()
        found = backend.discover()
        backend.close()
        return {
            "driver": driver.driver_version,
            "devices": [repr(each) for each in found.devices],
            "problems": list(found.problems),
        }
    except Exception as error:
        return {"failed": f"{type(error).__name__}: {error}"}


# -------------------------------------------------------------------------------------------------------- driver's ways


def ways(bench: Bench) -> dict[str, Any]:
    """Each way of taking memory, in a lease: it must be refused, and never exceed the lease by the driver's count."""
    from bench.lib.cuda_ways import WAYS

    results: dict[str, Any] = {}
    for way in WAYS:
        for lookup in ("linker", "proc_address"):
            with bench.lease(4 * GIB) as lease:
                try:
                    results[f"{way}/{lookup}"] = probe_way(lease, way, lookup)
                except Exception as error:
                    results[f"{way}/{lookup}"] = {"failed": f"{type(error).__name__}: {error}"}
    return results


def probe_way(lease: Lease, way: str, lookup: str) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "bench.lib.cuda_ways",
        "--way",
        way,
        "--piece",
        "67108864",
        "--most",
        str(6 * GIB),
        "--lookup",
        lookup,
        "--hold",
        "--release",
    ]
    process = subprocess.Popen(
        command,
        env=lease.environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    timer = ended_after(process, 60)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        used = lease.bench.used_bytes(process.pid)
        held = lease.held_bytes()
        out, err = process.communicate(timeout=60)
    finally:
        timer.cancel()
        process.kill()
    if not line.startswith("{"):
        return {"failed": f"exit {process.returncode}", "stderr": err[-800:]}
    answer = json.loads(line)
    after = json.loads(out.splitlines()[-1]) if out.strip().startswith("{") else {"stderr": err[-400:]}
    return {
        "error": answer["error"],
        "call": answer["call"],
        "held_mib": answer["held_bytes"] >> 20,
        "free_before_mib": answer.get("free_before_bytes", 0) >> 20,
        "took_s": answer.get("took_s"),
        "driver_mib": None if used is None else used >> 20,
        "charged_mib": None if held is None else held >> 20,
        "over": used is not None and used > 4 * GIB,
        "free_released_mib": int(after.get("free_released_bytes", 0)) >> 20 or after,
    }


def pool_steps(bench: Bench) -> dict[str, Any]:
    """The steps in which the driver's pool takes memory, and so how exactly a pool can be charged."""
    return run_json(
        """
        import ctypes, json
        from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p
        from aliquot.common.cuda import Driver
        d = Driver(); pool = c_void_p(); d.call("cuDeviceGetDefaultMemPool", byref(pool), c_int(0))
        def reserved():
            value = c_uint64(); d.call("cuMemPoolGetAttribute", pool, c_int(5), byref(value)); return value.value
        steps = {}
        for mib in (1, 2, 16, 31, 33, 40, 64, 100, 513):
            p = c_uint64(); before = reserved()
            d.call("cuMemAllocAsync", byref(p), c_size_t(mib << 20), c_void_p(0))
            steps[mib] = (reserved() - before) / (1 << 20)
            d.call("cuMemFreeAsync", p, c_void_p(0)); d.synchronize()
            d.call("cuMemPoolTrimTo", pool, c_size_t(0))
        print(json.dumps({"grown_mib_by_request_mib": steps}))
        """,
        plain_environment(),
    )


# ----------------------------------------------------------------------------------------------------------- frameworks


def framework(lease: Lease, program: str, extra: Mapping[str, str]) -> dict[str, Any]:
    """Fill the lease from a framework; meanwhile ask the driver what it holds."""
    environment = lease.environment({"LEASE_BYTES": str(lease.bench.lease_bytes)} | dict(extra))
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    timer = ended_after(process, 150)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        used = lease.bench.used_bytes(process.pid)
        held = lease.held_bytes()
        out, err = process.communicate("go\n")
    finally:
        timer.cancel()
        process.kill()
    lines = [each for each in out.splitlines() if each.startswith("{")]
    answer = json.loads(lines[-1]) if lines else json.loads(line) if line.startswith("{") else {}
    answer |= {
        "driver_mib": None if used is None else used >> 20,
        "charged_mib": None if held is None else held >> 20,
        "over": used is not None and used > lease.bench.lease_bytes,
        "exit": process.returncode,
        "said_on": "holds this process" in err,
    }
    if process.returncode:
        answer["stderr"] = err[-1500:]
    return answer


def torch_section(bench: Bench) -> dict[str, Any]:
    """PyTorch with each of its allocators."""
    if problem := missing("torch"):
        return {"not run": problem}
    variants = {
        "default": {},
        "expandable_segments": {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
        "cudaMallocAsync": {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        "graphs": {"WITH_GRAPH": "1"},
        "graphs, cudaMallocAsync": {"WITH_GRAPH": "1", "PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    }
    results = {}
    for name, extra in variants.items():
        with bench.lease() as lease:
            results[name] = framework(lease, TORCH, extra)
    return results


def cupy_section(bench: Bench) -> dict[str, Any]:
    """CuPy with each of its allocators."""
    if problem := missing("cupy"):
        return {"not run": problem}
    results = {}
    for kind in ("pool", "async", "managed"):
        with bench.lease() as lease:
            results[kind] = framework(lease, CUPY, {"ALLOCATOR": kind})
    return results


# ------------------------------------------------------------------------------------------------------ several, killed


def several(bench: Bench) -> dict[str, Any]:
    """Four processes race for one lease; then one is killed, and another takes its memory."""
    with bench.lease(4 * GIB) as lease:
        command = [
            sys.executable,
            "-m",
            "aliquot.agent.doctor.probe",
            "--piece",
            "2097152",
            "--most",
            str(8 * GIB),
            "--hold",
        ]
        racers = [
            subprocess.Popen(
                command,
                env=lease.environment(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            for _ in range(4)
        ]
        timers = [ended_after(racer, 60) for racer in racers]
        answers = [json.loads(racer.stdout.readline() or "{}") for racer in racers if racer.stdout]
        used = [bench.used_bytes(racer.pid) or 0 for racer in racers]
        charged = lease.held_bytes() or 0
        for racer in racers:
            racer.send_signal(signal.SIGKILL)
            racer.wait()
        for timer in timers:
            timer.cancel()
        again = subprocess.run(
            [*command[:-1]], env=lease.environment(), capture_output=True, text=True, timeout=60, check=False
        )
        return {
            "driver_mib": [each >> 20 for each in used],
            "sum_mib": sum(used) >> 20,
            "charged_mib": charged >> 20,
            "over": sum(used) > 4 * GIB,
            "errors": [each.get("error") for each in answers],
            "after_kill_held_mib": json.loads(again.stdout.splitlines()[-1])["held_bytes"] >> 20,
        }


def bare(bench: Bench) -> dict[str, Any]:
    """A program without the library, as for the watchdog: it must be seen by NVML and ended by a signal."""
    command = [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(2 * GIB), "--hold"]
    process = subprocess.Popen(
        command, env=plain_environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    timer = ended_after(process, 60)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        over_at = time.monotonic()
        limit_bytes, polls = GIB, 0
        while (bench.used_bytes(process.pid) or 0) <= limit_bytes and time.monotonic() - over_at < 10:
            polls += 1
        seen_ms = (time.monotonic() - over_at) * 1000
        from aliquot.agent.core.model import Holder
        from aliquot.agent.processes import proc as processes
        from aliquot.agent.processes import signals

        key = processes.key_of(process.pid)
        assert key is not None
        holder = Holder("hardware", 1, 0)
        signaller = signals.Signaller(belongs=lambda pid, _: pid == process.pid, held=lambda _: True)
        outcome = signaller.send(signals.Target(key, holder, "over its limit"), signal.SIGTERM)
        process.wait(timeout=10)
        gone_ms = (time.monotonic() - over_at) * 1000
    finally:
        timer.cancel()
        process.kill()
    begun = time.monotonic()
    while bench.used_bytes(process.pid) and time.monotonic() - begun < 10:
        time.sleep(0.005)
    return {
        "seen_ms": round(seen_ms, 2),
        "outcome": str(outcome),
        "gone_ms": round(gone_ms, 2),
        "memory_back_ms": round((time.monotonic() - begun) * 1000, 1),
    }


# ------------------------------------------------------------------------------------------------------------------ mps


def mps(bench: Bench) -> dict[str, Any]:
    """An MPS control daemon, if one can be started without changing the compute mode."""
    try:
        with mps_daemon(bench) as daemon:
            return clients_of(bench, daemon)
    except Unavailable as error:
        return {"not run": str(error)}


def clients_of(bench: Bench, daemon: MpsDaemon) -> dict[str, Any]:
    """Its limits, a client that wants more, and one that can't find the daemon."""
    result: dict[str, Any] = {
        "set_limit": daemon.say("set_default_device_pinned_mem_limit 0 2048M"),
        "get_limit": daemon.say("get_default_device_pinned_mem_limit 0"),
        "set_percentage": daemon.say("set_default_active_thread_percentage 50"),
    }
    command = [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", str(4 * GIB), "--hold"]

    def probe(environment: Mapping[str, str], all_hold: threading.Barrier | None = None) -> dict[str, Any]:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        timer = ended_after(process, 60)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if all_hold is not None:
                all_hold.wait(60)
            found = {
                "answer": json.loads(line) if line.startswith("{") else None,
                "servers": daemon.say("get_server_list"),
                "clients": daemon.say("ps"),
                "used_mib": (bench.used_bytes(process.pid) or 0) >> 20,
            }
            _, err = process.communicate(timeout=30)
            return found | {"stderr": err[-300:]}
        finally:
            timer.cancel()
            process.kill()

    result["client"] = probe(daemon.client)
    both = threading.Barrier(2)
    with ThreadPoolExecutor(2) as pool:
        result["two clients at once"] = list(pool.map(probe, [daemon.client] * 2, [both] * 2))
    result["wrong pipe directory"] = probe(daemon.client | {"CUDA_MPS_PIPE_DIRECTORY": str(bench.scratch / "nowhere")})
    result["training at 50 percent"] = (
        {"not run": missing("torch")} if missing("torch") else run_json(TRAINING, daemon.client)
    )
    return result


SECTIONS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "discovery": discovery,
    "ways": ways,
    "pool_steps": pool_steps,
    "several": several,
    "bare": bare,
    "torch": torch_section,
    "cupy": cupy_section,
    "mps": mps,
    "slowdown": slowdown,
}


if __name__ == "__main__":
    sys.exit(main())
