"""A small API server for tests and benchmarks: real HTTP, and the rules of the real one that clients trip over.

uid, resourceVersion and 409; lists in pages that expire; watches with bookmarks and 410; field and label selectors;
/status, /binding (annotations merged in the same write), /eviction; TokenReview and SubjectAccessReview; ResourceQuotas
on pods; Leases, Events, and every other kind as a generic resource. Where it differs from a real API server, it is
wrong: the suite `tests/kube/conformance` runs against both.
"""
