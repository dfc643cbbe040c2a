"""Whether a pod's containers are what was prepared: in its cgroup, and with what they were given."""

from __future__ import annotations

from aliquot.kube.node.core.resources import PERCENT_RESOURCE
from aliquot.kube.node.identity import NotBound
from aliquot.kube.node.objects import Pod
from aliquot.kube.node.parts import NodeParts

PATIENCE_S = 15.0
"""How long a container may seem to be somewhere else, or without what it was given, before its pod is told."""


class Containers:
    """Use from one event loop."""

    def __init__(self, parts: NodeParts) -> None:
        self._cgroups, self._records, self._injection = parts.cgroups, parts.records, parts.injection
        self._monotonic_s = parts.monotonic_s
        self.patience_s = PATIENCE_S
        self._wrong_since: dict[str, dict[str, float]] = {}
        """By uid and word."""

    def forget(self, uid: str) -> None:
        """The pod has gone."""
        self._wrong_since.pop(uid, None)

    def check(self, pod: Pod) -> None:
        """Raises `NotBound` where a container is not what was prepared, and stays so: a kubelet says of containers that
        they run for seconds after they have ended.
        """
        found = self.wrong(pod)
        since, now_s = self._wrong_since.get(pod.identity.uid, {}), self._monotonic_s()
        self._wrong_since[pod.identity.uid] = lasting = {word: since.get(word, now_s) for word in found}
        for word, since_s in lasting.items():
            if now_s - since_s >= self.patience_s:
                raise NotBound(word, found[word])

    def wrong(self, pod: Pod) -> dict[str, str]:
        """What seems to be wrong with its containers: messages by word. Raises `NotBound`."""
        cgroup = self._cgroups.of_pod(pod.identity)
        found = {}
        outside = self._cgroups.outside(cgroup, pod.container_ids)
        if outside:
            found["ContainerElsewhere"] = (
                f"container {outside[0]} of pod {pod.identity} is not in {cgroup}: nothing can be said of its limits"
            )
        bound, variable = self._records.of(pod.identity.uid), self._injection.variable
        if bound is None or not variable:
            return found
        looks = [
            self._cgroups.has_variable(each, variable)
            for each in self._cgroups.of_containers(cgroup, pod.container_ids)
        ]
        # Containers that ask for no units are given nothing: one that has it shows that the runtime can.
        if False in looks and True not in looks and not bound.places:
            found["NoUnits"] = (
                f"no container of pod {pod.identity} has a limit of {PERCENT_RESOURCE}: nothing could be put "
                "into them, and they started before their limits were in force; admission did not see the pod"
            )
        elif False in looks and True not in looks:
            found["NotInjected"] = (
                f"the containers of pod {pod.identity} were started without {variable}: the container runtime left out "
                "what the device plugin gave it; see docs/kubernetes-node.md"
            )
        return found
