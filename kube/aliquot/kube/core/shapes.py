"""The fields of Kubernetes' objects that we read, and no others: what is not here is not even decoded."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec


class RawMeta(msgspec.Struct, rename="camel", gc=False):
    """`metadata`."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    deletion_timestamp: str | None = None


class RawResources(msgspec.Struct, gc=False):
    """`resources` of a container. Quantities are text or, in what people write, numbers."""

    requests: dict[str, str | int] | None = None
    limits: dict[str, str | int] | None = None


class RawContainer(msgspec.Struct, rename="camel", gc=False):
    """A container."""

    name: str = ""
    resources: RawResources | None = None
    restart_policy: str | None = None


class RawGroup(msgspec.Struct, rename="camel", gc=False):
    """`spec.schedulingGroup` of Kubernetes 1.37."""

    pod_group_name: str = ""


class RawPodSpec(msgspec.Struct, rename="camel", gc=False):
    """`spec`."""

    node_name: str = ""
    scheduler_name: str = ""
    priority: int | None = None
    preemption_policy: str | None = None
    containers: Sequence[RawContainer] | None = None
    init_containers: Sequence[RawContainer] | None = None
    scheduling_group: RawGroup | None = None


class RawPodStatus(msgspec.Struct, gc=False):
    """`status`."""

    phase: str = ""


class RawPod(msgspec.Struct, gc=False):
    """A pod on the wire."""

    metadata: RawMeta = msgspec.field(default_factory=RawMeta)
    spec: RawPodSpec = msgspec.field(default_factory=RawPodSpec)
    status: RawPodStatus = msgspec.field(default_factory=RawPodStatus)
