"""Kinds of objects by their place in the API."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind: `Resource("apps/v1", "deployments")`. `v1` is the core group."""

    version: str
    plural: str
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The path of one object, of a namespace's, or (without either) of all."""
        parts = ["/api" if "/" not in self.version else "/apis", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        parts += [quote(part, safe="") for part in (name, subresource) if part]
        return "/".join(parts)


def kind_in(path: str) -> str:
    """What a path is about, whichever object: `pods/binding` of `/api/v1/namespaces/a/pods/b/binding`."""
    parts = path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        parts = parts[2:]
    return "/".join(parts[::2])


PODS: Final = Resource("v1", "pods")
NODES: Final = Resource("v1", "nodes", namespaced=False)
NAMESPACES: Final = Resource("v1", "namespaces", namespaced=False)
EVENTS: Final = Resource("v1", "events")
CONFIG_MAPS: Final = Resource("v1", "configmaps")
SECRETS: Final = Resource("v1", "secrets")
LEASES: Final = Resource("coordination.k8s.io/v1", "leases")
PRIORITY_CLASSES: Final = Resource("scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
CRDS: Final = Resource("apiextensions.k8s.io/v1", "customresourcedefinitions", namespaced=False)
MUTATING_WEBHOOKS: Final = Resource(
    "admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations", namespaced=False
)
VALIDATING_POLICIES: Final = Resource(
    "admissionregistration.k8s.io/v1", "validatingadmissionpolicies", namespaced=False
)
ACCESS_REVIEWS: Final = Resource("authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)
DEPLOYMENTS: Final = Resource("apps/v1", "deployments")
DAEMON_SETS: Final = Resource("apps/v1", "daemonsets")
SERVICES: Final = Resource("v1", "services")
POD_TEMPLATES: Final = Resource("v1", "podtemplates")
PROVISIONING_REQUESTS: Final = Resource("autoscaling.x-k8s.io/v1", "provisioningrequests")
AUTOSCALERS: Final = Resource("autoscaling/v2", "horizontalpodautoscalers")
SCALED_OBJECTS: Final = Resource("keda.sh/v1alpha1", "scaledobjects")
RESOURCE_CLAIMS: Final = Resource("resource.k8s.io/v1", "resourceclaims")
RESOURCE_SLICES: Final = Resource("resource.k8s.io/v1", "resourceslices", namespaced=False)
WORKLOADS: Final = Resource("kueue.x-k8s.io/v1beta2", "workloads")
ADMISSION_CHECKS: Final = Resource("kueue.x-k8s.io/v1beta2", "admissionchecks", namespaced=False)
ELASTIC_JOBS: Final = Resource("aliquot.dev/v1alpha1", "elasticjobs")
