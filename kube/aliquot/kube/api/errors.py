"""What the API server says when it says no, as one tree.

KubeError
├── KubeUnavailable      no answer, or one that says "later" (429, 5xx): try again
└── KubeRefused          it answered no                        .status .stated_reason
├── KubeForbidden        a role lacks a verb (401, 403)
├── KubeNotFound         404
├── KubeConflict         409: somebody was faster, or it exists
├── KubeInvalid          422: the object would not be valid
└── KubeExpired          410: that resource version is no longer kept; list again
"""

from __future__ import annotations

import logging

from aliquot.common.errors import AliquotError


class KubeError(AliquotError):
    """Something about the API server."""


class KubeUnavailable(KubeError):
    """No answer, or not now. `retry_after_s` is what the server asked for, if it did."""

    def __init__(self, message: str, *, hint: str = "", retry_after_s: float | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry_after_s = retry_after_s


class KubeRefused(KubeError):
    """An answer of 4xx. `stated_reason` is the server's word, such as `AlreadyExists`."""

    def __init__(self, message: str, *, status: int, stated_reason: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.stated_reason = stated_reason


class KubeForbidden(KubeRefused):
    """A role lacks a verb, or a rule of the cluster's forbids it: a quota, a policy."""

    @property
    def lacks_right(self) -> bool:
        """Whether the caller may not at all: its token is not known, or its role lacks a verb."""
        return self.status == 401 or '" cannot ' in self.message


class KubeNotFound(KubeRefused):
    """It does not exist."""


class KubeConflict(KubeRefused):
    """Somebody was faster, or it exists already."""


class KubeInvalid(KubeRefused):
    """The object would not be valid: also a patch with the uid of one that was made again under its name."""


class KubeExpired(KubeRefused):
    """That resource version is no longer kept."""


_BY_STATUS: dict[int, type[KubeRefused]] = {
    401: KubeForbidden,
    403: KubeForbidden,
    404: KubeNotFound,
    409: KubeConflict,
    410: KubeExpired,
    422: KubeInvalid,
}


def refused(status: int, stated_reason: str, message: str, what: str) -> KubeRefused:
    """The error for an answer of 4xx."""
    kind = _BY_STATUS.get(status, KubeRefused)
    error = kind(f"{what}: {status} {message or stated_reason}", status=status, stated_reason=stated_reason)
    if status == 401:
        error.hint = "the API server does not know this token: is it this cluster's, and still good?"
    elif isinstance(error, KubeForbidden) and error.lacks_right:
        error.hint = "give the service account that verb: see the roles in deploy/chart, or `aliquot kube doctor`"
    return error


def level_of(error: AliquotError) -> int:
    """How loud a failure is logged that is tried again: what the client has told once is not told each time."""
    return logging.DEBUG if isinstance(error, KubeForbidden) and error.lacks_right else logging.WARNING
