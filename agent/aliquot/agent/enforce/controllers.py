"""The cgroups that tiers limit, and the controller `dmem` at work in them: it must be switched on in each cgroup above,
from the top.

systemd knows no `dmem` yet and switches off again what it does not know, so this is done anew whenever a limit is set.
"""

from __future__ import annotations

from aliquot.agent.enforce.base import EnforcementError, Limited
from aliquot.common.kernel_files import KernelFiles, Mount

DMEM = "dmem"
NO_DMEM = f"the kernel has no controller {DMEM} for cgroups: Linux 6.14 and newer have, with CONFIG_CGROUP_DMEM"

SHUT_BYTES = 2 << 20
"""The least that a driver gives: not even a context fits. Zero might mean "no limit" somewhere."""


def cgroups_of(tree: KernelFiles, limited: Limited) -> list[str]:
    """Directories of the holder's leaf and then of what was attached to it. Raises `EnforcementError`."""
    mount = tree.cgroups()
    if mount is None or limited.cgroup is None:
        raise EnforcementError("this lease's processes are not followed by cgroup")
    found = []
    for cgroup in (limited.cgroup, *limited.attached):
        directory = mount.directory_of(cgroup)
        if directory is None:
            raise EnforcementError(f"cgroup {cgroup} lies outside of what is mounted")
        found.append(str(directory))
    return found


def shares_of(tree: KernelFiles, limited: Limited) -> dict[str, int]:
    """What each of a holder's cgroups may hold, in bytes. A leaf and an attached cgroup lie beside each other, so no
    limit bounds them together, and each with the whole of it would be twice as much: the attached one gets all, and the
    leaf nothing. Raises `EnforcementError` where the leaf is in use.
    """
    leaf, *attached = cgroups_of(tree, limited)
    if not attached:
        return {leaf: limited.spec.memory_bytes}
    if len(attached) > 1 or _populated(tree, leaf):
        raise EnforcementError(
            f"its processes are in {leaf} and in {', '.join(attached)}: no limit bounds cgroups beside each other",
            hint="start them all in the attached cgroup, or all by `aliquot exec`",
        )
    return {leaf: SHUT_BYTES, attached[0]: limited.spec.memory_bytes}


def make_ready(tree: KernelFiles, cgroup: str) -> str:
    """Have a cgroup, as /proc/pid/cgroup names it, with the controller's files; empty, or why it lacks these. Raises
    `EnforcementError` where it can't be made.
    """
    mount = tree.cgroups()
    directory = mount.directory_of(cgroup) if mount is not None else None
    if mount is None or directory is None:
        return f"cgroup {cgroup} lies outside of what is mounted"
    try:
        tree.make(str(directory.parent))
        problem = switch_on(tree, mount, cgroup.rpartition("/")[0])
        tree.make(str(directory))
    except OSError as error:
        raise EnforcementError(f"cgroup {directory}: {error.strerror}") from error
    return problem


def _populated(tree: KernelFiles, directory: str) -> bool:
    try:
        return "populated 1" in tree.read(f"{directory}/cgroup.events").splitlines()
    except OSError:
        return False


def switch_on(tree: KernelFiles, mount: Mount, cgroup: str) -> str:
    """Empty where the controller works in the children of a cgroup, as /proc/pid/cgroup names it; else why not. Where
    the kernel has no such controller, nothing is changed.
    """
    target = mount.directory_of(cgroup)
    if target is None or not target.is_relative_to(mount.directory):
        return f"cgroup {cgroup} lies outside of what is mounted at {mount.directory}"
    chain = [str(mount.directory)]
    for part in target.relative_to(mount.directory).parts:
        chain.append(f"{chain[-1]}/{part}")
    try:
        if DMEM not in tree.read(f"{chain[0]}/cgroup.controllers").split():
            return NO_DMEM
        for directory in chain:
            control = f"{directory}/cgroup.subtree_control"
            if DMEM not in tree.read(control).split():
                tree.write(control, f"+{DMEM}")
                if DMEM not in tree.read(control).split():
                    return f"{DMEM} could not be switched on in {directory}"
    except OSError as error:
        return f"{DMEM} can't be switched on for the cgroups of leases ({error.filename}: {error.strerror})"
    return ""
