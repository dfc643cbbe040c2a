"""Has the controller `dmem` at work in a cgroup's children: it must be switched on in each cgroup above, from the top.

systemd knows no `dmem` yet and switches off again what it does not know, so this is done anew whenever a limit is set.
"""

from __future__ import annotations

from aliquot.agent.processes.tree import Hierarchy, Tree

DMEM = "dmem"
NO_DMEM = f"the kernel has no controller {DMEM} for cgroups: Linux 6.14 and newer have, with CONFIG_CGROUP_DMEM"


def switch_on(tree: Tree, mount: Hierarchy, cgroup: str) -> str:
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
