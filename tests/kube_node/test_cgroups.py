"""What is read of pods' cgroups and of the processes in them: trees of files, as a kubelet and the kernel make them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from aliquot.kube.node.cgroups import MAX_ENVIRONMENT_BYTES, PodCgroups
from aliquot.kube.node.core.cgroup_names import pod_cgroups
from aliquot.kube.node.identity import NotBound, PodIdentity

POD = PodIdentity("default", "a", "0123abcd-0000-4000-8000-00000000abcd")


class Machine:
    """A hierarchy and a `/proc` of files."""

    def __init__(self, folder: Path) -> None:
        self.root, self.proc = folder / "cgroup", folder / "proc"
        self.root.mkdir()
        self.proc.mkdir()
        self.cgroups = PodCgroups(self.root, proc=self.proc)

    def cgroup(self, name: str, *pids: int) -> str:
        """Make it, with processes."""
        directory = self.root / name.lstrip("/")
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))
        return name

    def process(self, pid: int, environment: bytes) -> None:
        """Make it."""
        (self.proc / str(pid)).mkdir()
        (self.proc / str(pid) / "environ").write_bytes(environment)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_pod_has_one_cgroup_by_either_driver_and_nothing_else_counts(machine: Machine) -> None:
    with pytest.raises(NotBound, match="has no cgroup") as none:
        machine.cgroups.of_pod(POD)
    assert (none.value.word, none.value.final) == ("NoCgroup", False)
    first, second, *_ = pod_cgroups(POD.uid, "/")
    machine.cgroup(first)
    assert machine.cgroups.of_pod(POD) == first
    assert machine.cgroups.exists(first)
    assert not machine.cgroups.exists(second)
    machine.cgroup(second)
    with pytest.raises(NotBound, match="has several cgroups") as several:
        machine.cgroups.of_pod(POD)
    assert (several.value.word, several.value.final) == ("SeveralCgroups", True)


def test_containers_are_the_cgroups_that_are_called_by_their_ids(machine: Machine) -> None:
    pod = machine.cgroup("/kubepods/pod1")
    assert machine.cgroups.children("/kubepods/pod2") == []
    for name in ("cri-aa.scope", "cri-bb.scope", "cri-sandbox.scope"):
        machine.cgroup(f"{pod}/{name}")
    assert machine.cgroups.children(pod) == ["cri-aa.scope", "cri-bb.scope", "cri-sandbox.scope"]
    assert machine.cgroups.of_containers(pod, ["containerd://aa", ""]) == [f"{pod}/cri-aa.scope"]
    assert machine.cgroups.outside(pod, []) == []
    assert machine.cgroups.outside(pod, ["containerd://aa", "containerd://cc"]) == ["cc"]


def test_processes_are_those_of_the_cgroup_and_of_all_below(machine: Machine) -> None:
    pod = machine.cgroup("/pod", 10)
    machine.cgroup("/pod/one", 11, 12)
    machine.cgroup("/pod/one/more", 13)
    machine.cgroup("/other", 14)
    assert sorted(machine.cgroups.pids(pod)) == [10, 11, 12, 13]
    assert machine.cgroups.users(pod) == set(), "all have ended"
    machine.process(13, b"")
    assert machine.cgroups.users(pod) == {os.geteuid()}


@pytest.mark.parametrize(
    ("environments", "found"),
    [
        ([], None),
        ([b""], None),
        ([b"A=1\0"], False),
        ([b"", b"A=1\0"], False),
        ([b"WANTED=\0"], True),
        ([b"A=1\0", b"A=1\0WANTED=x"], True),
        ([b"NOT_WANTED=1\0WANTEDX=2\0A=WANTED=1\0"], False),
        ([b"A=" + b"x" * (MAX_ENVIRONMENT_BYTES - 12) + b"\0WANTED=1"], True),
        ([b"A=" + b"x" * MAX_ENVIRONMENT_BYTES + b"\0WANTED=1"], False),
    ],
)
def test_whether_a_variable_was_given_is_not_known_where_nobody_can_be_asked(
    machine: Machine, environments: list[bytes], found: bool | None
) -> None:
    pids = range(20, 20 + len(environments))
    pod = machine.cgroup("/pod", *pids, 99)  # 99 has just ended
    for pid, environment in zip(pids, environments, strict=True):
        machine.process(pid, environment)
    assert machine.cgroups.has_variable(pod, "WANTED") is found
    assert MAX_ENVIRONMENT_BYTES == 1 << 20, "all that a kernel lets one variable have, several times over"
