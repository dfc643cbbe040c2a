"""The words that we use in Kubernetes' objects and on our leases, once."""

from __future__ import annotations

from typing import Final

GROUP: Final = "aliquot.dev"

# Resources that containers ask for.
GPU: Final = "aliquot.dev/gpu"
GPU_PERCENT: Final = "aliquot.dev/gpu-percent"
GPU_MEMORY_MIB: Final = "aliquot.dev/gpu-memory-mib"

# Annotations that people write on pods. Those of single fields of a request are in `common/request_fields.json`.
REQUEST: Final = "aliquot.dev/request"
GANG_SIZE: Final = "aliquot.dev/gang-size"

# Labels that people write on pods.
GANG: Final = "aliquot.dev/gang"
QUEUE: Final = "aliquot.dev/queue"
WORKLOAD: Final = "workload-type"
"""`training`, `inference`: a hint for queues that place by it."""

TRANSLATE: Final = "aliquot.dev/translate"
"""Label of a namespace, or of a pod, whose GPUs may be asked for in other systems' words: `true`."""
TRANSLATED: Final = "aliquot.dev/translated"
"""Annotation that says what became of those words."""

# Annotations that only we write: the assignment travels in the Binding.
LEASE_ID: Final = "aliquot.dev/lease-id"
ASSIGNMENT: Final = "aliquot.dev/assignment"
ROOM: Final = "aliquot.dev/room"
"""Written on a pod that waits, when room became free that its scheduler knows nothing of."""
RESERVED_BY: Final = "aliquot.dev/reserved-by"
"""Who makes the gang's reservation instead of the extender (`kueue`)."""

# Labels of our leases.
LEASE_CLUSTER: Final = "kube.aliquot.dev/cluster"
LEASE_NAMESPACE: Final = "kube.aliquot.dev/namespace"
LEASE_POD_UID: Final = "kube.aliquot.dev/pod-uid"
LEASE_GANG: Final = "kube.aliquot.dev/gang"
LEASE_ATTEMPT: Final = "kube.aliquot.dev/attempt"
LEASE_OWNER: Final = "kube.aliquot.dev/owner"
"""Of a reservation: who ends it (`gang`: with its pods; `kueue`: with its Workload; `job`: with its ElasticJob).
`room`: it is a single pod's, and the pool was asked to make room for it."""
ROOM_OWNER: Final = "room"

CONTROLLERS_LEASE: Final = "aliquot-kube-controllers"
"""The Lease whose holder is the one process of controllers that works."""
SCHEDULER: Final = "aliquot"
"""`schedulerName` of our pods, unless settings say otherwise."""
