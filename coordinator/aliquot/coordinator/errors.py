"""Errors of the coordinator outside its core. `wire.errors` turns these, like the core's, into gRPC statuses.

AliquotError
 ├── JournalError
 │    ├── JournalUnavailable   can't be written now: grants stop, retried by itself
 │    ├── JournalCorrupt       can't be read: needs a person, and says what to do
 │    ├── JournalTooNew        written by a newer version
 │    └── JournalLocked        another coordinator has it
 ├── NotLeader                 another coordinator leads; nothing may be written any more
 ├── Overloaded                a stated bound is reached: come back later
 ├── ShuttingDown              this coordinator is going away
 ├── WatchCompacted            a watcher is too far behind, or too slow
 ├── ProtocolVersion           an agent speaks no protocol that this coordinator speaks
 ├── NotAllowed                the caller's certificate does not entitle it to this
 ├── Unauthenticated           the call shows no token that counts
 ├── LoginRefused              what should vouch for a caller does not
 ├── LoginRuleMissing          the caller is vouched for, and no rule gives a role
 ├── LoginNotOffered           nobody is asked to vouch for callers here
 ├── ProviderUnavailable       who should vouch for the caller does not answer
 └── RolesChanged              a call under way ended because roles of its caller were taken away
"""

from __future__ import annotations

from aliquot.common.errors import AliquotError


class JournalError(AliquotError):
    """Root of the journal's errors."""

    reason = "JOURNAL_UNAVAILABLE"


class JournalUnavailable(JournalError):
    """The journal can't be written at the moment. What was not durable yet has not happened."""


class JournalCorrupt(JournalError):
    """A record other than the last one, or the file itself, is damaged."""


class JournalTooNew(JournalError):
    """The journal was written by a newer version, which this one can't read."""


class JournalLocked(JournalError):
    """Another coordinator has this journal open."""


class NotLeader(AliquotError):
    """Another coordinator has taken over: this one must not write again."""


class Overloaded(AliquotError):
    """A bound is reached. `retry_after_ms` is when to come back."""

    def __init__(self, message: str, *, retry_after_ms: int = 500) -> None:
        super().__init__(message, hint="send it again after the stated pause")
        self.retry_after_ms = retry_after_ms


class ShuttingDown(AliquotError):
    """This coordinator shuts down. Its successor, or the same one restarted, will answer."""


class WatchCompacted(AliquotError):
    """The watcher asked for, or fell back to, events that are no longer kept."""


class ProtocolVersion(AliquotError):
    """An agent speaks no protocol version that this coordinator speaks."""


class NotAllowed(AliquotError):
    """The caller's certificate does not entitle it to what it asks for."""


class Unauthenticated(AliquotError):
    """Nobody knows who calls. `word` says why: TOKEN_MISSING, TOKEN_UNKNOWN, TOKEN_EXPIRED or TOKEN_REVOKED."""

    reason = "TOKEN_UNKNOWN"

    def __init__(self, word: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.reason = word  # type: ignore[misc]  # one class for four stable words


class RolesChanged(AliquotError):
    """Roles of the caller were taken away while its call was under way."""


class NotEnrolled(AliquotError):
    """No key speaks for the node, or the agent shows none."""


class WrongKey(AliquotError):
    """What the agent shows does not prove that it has its node's key."""


class LoginRefused(AliquotError):
    """A caller's ID token or service account's token does not count here."""


class LoginRuleMissing(AliquotError):
    """The caller is who it says, and no rule lets it in."""


class LoginNotOffered(AliquotError):
    """Nobody is set up who could vouch for callers that way."""


class ProviderUnavailable(AliquotError):
    """The identity provider, or Kubernetes, can't be asked at the moment."""
