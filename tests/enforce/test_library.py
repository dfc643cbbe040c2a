"""The preload library as a file: what it needs, what it covers, and that it stays out of the way."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from aliquot import simgpu
from aliquot.agent import native
from aliquot.agent.enforce import preload_files
from aliquot.agent.enforce.preload import built_library
from aliquot.agent.enforce.preload_files import DeviceLimit, LeaseFiles, merged_preload

SOURCES = Path(native.__file__).parent / "preload"
OLDEST = (2, 17)
TAKING = re.compile(
    r"Alloc|Reserve|Create|Load(?!ing)|Import|Map(?!ped)|Mapped|Retain|SetLimit|Instantiate|GraphAdd|Register|Open|Bind|Attach"
    r"|Prefetch|ExportTable|Restore$|GetFunction$|LibraryGetModule"
)


def dynamic_symbols(library: Path, *options: str) -> list[str]:
    done = subprocess.run(["nm", "-D", *options, str(library)], capture_output=True, text=True, check=True)
    return done.stdout.split("\n")


def hooked() -> set[str]:
    text = (SOURCES / "hooks.def").read_text()
    return set(re.findall(r"^(?:HOOK|THROTTLE|NVML|LIBC)\((\w+)", text, re.MULTILINE))


def excused() -> dict[str, str]:
    lines = (SOURCES / "unhooked.txt").read_text().splitlines()
    pairs = (line.split(None, 1) for line in lines if line and not line.startswith(("#", " ")))
    return dict(pairs)


def taking_symbols() -> set[str]:
    listed = {
        line
        for line in (Path(__file__).parent / "driver_symbols.txt").read_text().splitlines()
        if not line.startswith("#")
    }
    simulated = {
        words[-1] for line in dynamic_symbols(simgpu.library_directory() / "libcuda.so.1") if (words := line.split())
    }
    return listed | {
        name for name in simulated if name.startswith("cu") and TAKING.search(name) and "Unmap" not in name
    }


@pytest.mark.skipif(shutil.which("musl-gcc") is None, reason="needs musl's compiler: apt-get install musl-tools")
def test_programs_of_another_c_library_start_and_fork_under_it(tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text(
        "#include <stdio.h>\n#include <sys/wait.h>\n#include <unistd.h>\n"
        'int main(void) { if (fork() == 0) { puts("child"); return 0; } wait(0); puts("parent"); return 0; }\n'
    )
    program = tmp_path / "hello"
    subprocess.run(["musl-gcc", "-o", program, source], check=True)
    environment = {"LD_PRELOAD": str(built_library())}
    done = subprocess.run([program], env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "child\nparent\n", "")


def test_it_needs_nothing_but_an_old_c_library() -> None:
    needed = [line for line in dynamic_symbols(built_library(), "-u") if " U " in line]
    assert needed
    for line in needed:
        versions = re.findall(r"@GLIBC_([0-9.]+)$", line)
        assert versions, f"not of the C library: {line}"
        assert tuple(map(int, versions[0].split("."))) <= OLDEST, line
    readelf = ["readelf", "-d", str(built_library())]
    dynamic = subprocess.run(readelf, capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(.*)\]", dynamic)) <= {"libc.so.6", "libdl.so.2"}


def test_every_hook_is_exported_and_nothing_else() -> None:
    exported = {line.split()[-1] for line in dynamic_symbols(built_library(), "--defined-only") if line}
    assert exported == hooked()


def test_every_way_of_taking_memory_is_hooked_or_excused() -> None:
    reasons = excused()
    missing = [
        name
        for name in sorted(taking_symbols() - hooked())
        if not any(fnmatchcase(name, pattern) for pattern in reasons)
    ]
    assert not missing, "hook them, or say in unhooked.txt why not"


def test_no_excuse_is_for_something_that_is_hooked_or_does_not_exist() -> None:
    names = taking_symbols()
    for pattern in excused():
        assert pattern not in hooked()
        assert any(fnmatchcase(name, pattern) for name in names), f"{pattern} excuses nothing"


def vendors_header(name: str) -> Path:
    """A header of CUDA's, from its own folder or a wheel of its runtime; skips where there is none."""
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    folders = [Path(home) / "include", *Path("/usr/local").glob("cuda-*/include")]
    folders += [include for path in sys.path for include in Path(path).glob("nvidia/cu*/include")]
    found = next((folder / name for folder in folders if (folder / name).is_file()), None)
    if found is None:
        pytest.skip(f"the vendor's {name} is not here (CUDA_HOME names its folder)")
    return found


OLD_INTERFACES = {("cuDeviceTotalMem", 2000), ("cuMemFree", 2000), ("cuMemGetInfo", 2000)}
"""Of 32 bits: what they free was never given, and what they report fits no device."""


def test_every_interface_that_the_vendor_knows_of_a_hooked_function_is_hooked() -> None:
    """One of another version may take other arguments."""
    types = vendors_header("cudaTypedefs.h").read_text()
    theirs = {(name, int(version)) for name, version in re.findall(r"PFN_(cu\w+?)_v(\d+)(?:_ptsz)?\b", types)}
    hooks = (SOURCES / "hooks.def").read_text()
    ours = {(name, int(version)) for name, version in re.findall(r"(?:HOOK|THROTTLE)\(\w+, (\w+), (\d+)", hooks)}
    names = {name for name, _ in ours}
    assert {each for each in theirs if each[0] in names} - ours <= OLD_INTERFACES


def test_the_list_of_the_drivers_symbols_is_as_new_as_the_vendors_header() -> None:
    declared = set(re.findall(r"CUDAAPI (cu\w+)\(", vendors_header("cuda.h").read_text()))
    taking = {name for name in declared if TAKING.search(name) and "Unmap" not in name}
    assert len(taking) > 50
    assert taking <= taking_symbols()


LAYOUTS = """
#include <stddef.h>
#include <stdio.h>
#include {header}
int main(void)
{{
    printf("%zu %zu %zu %zu %zu %zu %zu %zu\\n", sizeof(CUmemAllocationProp), sizeof(CUmemPoolProps),
           sizeof(CUDA_MEM_ALLOC_NODE_PARAMS), sizeof(CUgraphNodeParams), offsetof(CUgraphNodeParams, alloc),
           sizeof(CUarrayMapInfo), offsetof(CUarrayMapInfo, memHandle), sizeof(CUDA_ARRAY3D_DESCRIPTOR));
    return 0;
}}
"""


def test_layouts_are_the_vendors(tmp_path: Path) -> None:
    header = vendors_header("cuda.h")

    def layout(name: str, include: str) -> str:
        source = tmp_path / f"{name}.c"
        source.write_text(LAYOUTS.format(header=include))
        subprocess.run(["cc", "-o", str(tmp_path / name), str(source)], check=True, capture_output=True)
        return subprocess.run([str(tmp_path / name)], capture_output=True, text=True, check=True).stdout

    assert layout("ours", f'"{SOURCES / "abi.h"}"') == layout("theirs", f'"{header}"')


def test_files_are_laid_out_alike_on_both_sides(tmp_path: Path) -> None:
    source = tmp_path / "layout.c"
    source.write_text(
        f'#include <stddef.h>\n#include <stdio.h>\n#include "{SOURCES / "layout.h"}"\n'
        'int main(void) { printf("%zu %zu %zu %zu %zu %zu %zu", sizeof(struct limit_file), '
        " offsetof(struct limit_file, devices),"
        " sizeof(struct account_file), offsetof(struct account_file, slots), sizeof(struct slot),"
        " offsetof(struct account_file, paces), sizeof(struct limit_device)); return 0; }\n"
    )
    subprocess.run(["cc", "-o", str(tmp_path / "layout"), str(source)], check=True)
    found = subprocess.run([str(tmp_path / "layout")], capture_output=True, text=True, check=True).stdout
    limit, account, slot = preload_files._LimitFile, preload_files._AccountFile, preload_files._Slot
    assert list(map(int, found.split())) == [
        ctypes.sizeof(limit),
        limit.devices.offset,
        ctypes.sizeof(account),
        account.slots.offset,
        ctypes.sizeof(slot),
        account.paces.offset,
        ctypes.sizeof(preload_files._LimitDevice),
    ]


NEXT = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
pid_t getppid(void) { return ((pid_t(*)(void))dlsym(RTLD_NEXT, "getppid"))() > 0 ? -77 : 0; }
"""


def test_rtld_next_still_means_next_after_the_caller(tmp_path: Path) -> None:
    """A library that wraps a function finds the real one, not itself, through our dlsym."""
    (tmp_path / "wrap.c").write_text(NEXT)
    wrapper = tmp_path / "wrap.so"
    subprocess.run(["cc", "-O2", "-shared", "-fPIC", "-o", str(wrapper), str(tmp_path / "wrap.c"), "-ldl"], check=True)
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        files = LeaseFiles(tmp_path / "lease", "next")
        files.create(built_library())
        files.set_limit(scenario.devices()[0].uuid, DeviceLimit(1 << 30))
    preload = merged_preload(files.library, {"LD_PRELOAD": f"{wrapper} {files.library}"})
    assert preload == f"{files.library}:{wrapper}"
    done = subprocess.run(
        [sys.executable, "-c", "import os; print(os.getppid())"],
        env=os.environ | {"LD_PRELOAD": preload},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "-77"
    assert done.stderr == "", "a program that uses no GPU hears nothing of it"


def test_without_its_files_it_allows_nothing(tmp_path: Path) -> None:
    with simgpu.create(tmp_path / "gpus", ["A100-40"]) as scenario:
        lonely = tmp_path / "lonely" / preload_files.LIBRARY
        lonely.parent.mkdir()
        shutil.copy(built_library(), lonely)
        done = subprocess.run(
            [sys.executable, "-m", "aliquot.agent.doctor.probe", "--most", "64Mi"],
            env=os.environ | simgpu.environment(scenario.path) | {"LD_PRELOAD": str(lonely)},
            capture_output=True,
            text=True,
            check=True,
        )
    assert '"error": 2' in done.stdout
    assert "can't be read" in done.stderr
