"""The environment variables that make a program use its lease and nothing else.

On a node of the lease they come from its agent, because they depend on how the limit is enforced there. Elsewhere (a
launcher on a login node, a job that something else starts) they are the plain variables: which devices, and how much of
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from aliquot.client import _errors as errors
from aliquot.client._values.leases import Lease, Slice
from aliquot.client.local import LocalAgent
from aliquot.common import catalog

_NVIDIA_ID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f]{4}-", re.IGNORECASE)
# Only variables that take UUIDs: an index is a different device on each machine.
_VISIBLE = {"nvidia": ("CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"), "amd": ("ROCR_VISIBLE_DEVICES",)}


OURS_ALONE = frozenset({"ALIQUOT_TOKEN", "ALIQUOT_LEASE_SECRET"})
"""Secrets for this package: a job, and whatever prints or dumps its environment, has no use for them."""


def handed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What a program that is started under a lease gets of its launcher's environment."""
    return {name: value for name, value in environment.items() if name not in OURS_ALONE}


def member_slices(lease: Lease, member: int) -> tuple[Slice, ...]:
    """One member's slices, all on one node; empty if there is no such member."""
    return tuple(part for part in lease.slices if part.member == member)


def plain_environment(lease: Lease, member: int) -> dict[str, str]:
    """The variables that need no agent."""
    slices = member_slices(lease, member)
    variables = {
        "ALIQUOT_LEASE_ID": lease.lease_id,
        "ALIQUOT_TENANT": lease.tenant,
        "ALIQUOT_MEMBER": str(member),
    }
    if slices:
        variables["ALIQUOT_SHARE_MILLI"] = ",".join(str(part.share_milli) for part in slices)
        variables["ALIQUOT_MEMORY_BYTES"] = ",".join(str(part.memory_bytes) for part in slices)
    by_vendor: dict[str, list[str]] = {}
    for part in slices:
        by_vendor.setdefault(_vendor_of(part), []).append(part.device_uuid)
    for vendor, uuids in by_vendor.items():
        variables |= dict.fromkeys(_VISIBLE.get(vendor, ()), ",".join(uuids))
    return variables


def _vendor_of(part: Slice) -> str:
    """Whose device it is; empty where neither its model nor its id tells: no variable would be safe then."""
    known = catalog.vendor_of(part.device_model)
    return known or ("nvidia" if _NVIDIA_ID.match(part.device_uuid) else "")


def local_agent_of(lease: Lease, agents: Sequence[LocalAgent]) -> tuple[LocalAgent, int] | None:
    """The agent of this machine that serves the lease, and the lowest member of the lease on its node."""
    members = {part.node_id: part.member for part in sorted(lease.slices, key=lambda part: -part.member)}
    for agent in agents:
        try:
            node_id = agent.info().node_id
        except errors.AgentError:
            # A socket without an agent.
            continue
        if node_id in members:
            return agent, members[node_id]
    return None
