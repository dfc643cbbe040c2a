"""Roles and tokens: given and taken by those who may, and nobody gives more than they have.

What the caller may do is looked up here once more, in the State: between the check at the door and the decision its
role may have been taken away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from aliquot.common import limits, names
from aliquot.coordinator.core import commands as c
from aliquot.coordinator.core.books import access as records
from aliquot.coordinator.core.books.access import (
    FIRST_ADMIN,
    PODS,
    PRINCIPAL,
    SYSTEM,
    VOUCHERS,
    Acted,
    Actor,
    RoleGranted,
    RoleRevoked,
    Token,
    TokenIssued,
    TokensEnded,
)
from aliquot.coordinator.core.books.roles import GIVABLE, LEAST, Grant, Role, may_give
from aliquot.coordinator.core.commands.outcomes import NOTHING, Decision
from aliquot.coordinator.core.deciding.subject import Decides
from aliquot.coordinator.core.known.known import Known
from aliquot.coordinator.core.values.errors import (
    InvalidField,
    LastAdministrator,
    RoleMissing,
    TokenEnded,
    TokenNotFound,
    fields_refused,
)
from aliquot.coordinator.core.values.fact import Fact, by_kind
from aliquot.coordinator.core.values.timers import Due


def grant_role(known: Known, command: c.GrantRole, now_ms: int) -> Decision[None]:
    """Give a role. What is given already stays as it is."""
    check_principal(command.principal)
    _check_grant(command.grant)
    _require_may_give(known, command.by, command.grant, lasting=True)
    held = known.access.grants_of(command.principal)
    if command.grant in held:
        return NOTHING
    _check_room(known, command.principal, held, [command.grant])
    _require_no_copies(known, command.principal, [command.grant])
    return Decision((RoleGranted(now_ms, command.principal, command.grant),))


def revoke_role(known: Known, command: c.RevokeRole, now_ms: int) -> Decision[None]:
    """Take a role away. What is not there needs no taking."""
    _require_may_give(known, command.by, command.grant)
    if command.grant not in known.access.grants_of(command.principal):
        return NOTHING
    if command.grant == _ADMIN and not _other_administrator(known, command.principal):
        raise LastAdministrator(
            f"{command.principal} is the last administrator", hint="make somebody else one first, or leave it"
        )
    return Decision((RoleRevoked(now_ms, command.principal, command.grant),))


def issue_token(known: Known, command: c.IssueToken, now_ms: int) -> Decision[Token]:
    """A token for oneself, or for a principal whose every role one may give; with roles, where they are named."""
    token = command.token
    check_principal(token.principal)
    held = known.access.grants_of(token.principal)
    for grant in command.grants:
        _check_grant(grant)
        _require_may_give(known, command.by, grant, lasting=True)
    new = [grant for grant in dict.fromkeys(command.grants) if grant not in held]
    if token.principal != command.by.principal:
        _check_nobody_s_name(known, command.by, token.principal)
        if not held and not new:
            raise InvalidField(
                "grants",
                f"{token.principal} has no role, so a token would open nothing",
                hint="name a role and a scope",
            )
        if held:
            _require_may_replace(known, command.by, token.principal, held)
    _require_no_copies(known, token.principal, new)
    if command.by.principal != SYSTEM:  # whoever enters the coordinator's own folder gets in where all is full, too
        _check_room(known, token.principal, held, new)
        _check_room_for_token(known, token.principal, [*held, *new], own=token.principal == command.by.principal)
    source = known.access.tokens.get(command.by.token_id)
    session = "" if source is None else source.source or (source.token_id if source.session else "")
    expires_ms = token.expires_ms
    if source is not None and source.expires_ms and (session or token.principal == command.by.principal):
        # A token made by one that ends never outlives it, or a session could be made to last for ever.
        expires_ms = min(expires_ms or source.expires_ms, source.expires_ms)
    issued = replace(
        token,
        created_ms=now_ms,
        expires_ms=expires_ms,
        issued_by=command.by.principal,
        generation=known.enrolment.newest,  # which goes out with it
        source=session,
        giver=command.by.principal if token.principal != command.by.principal else source.giver if source else "",
    )
    if issued.expired(now_ms):
        raise InvalidField("ttl_ms", "the token would be expired already")
    facts: list[Fact] = [RoleGranted(now_ms, token.principal, grant) for grant in new]
    return Decision((*facts, TokenIssued(now_ms, issued)), issued)


def _require_no_copies(known: Known, principal: str, new: Sequence[Grant]) -> None:
    """A role goes to everybody who has a token of a principal: also to whoever made that token before, and may not give
    the role.
    """
    books = known.access
    for token_id in books.tokens_of.get(principal, ()):
        giver = books.tokens[token_id].giver
        if giver in ("", SYSTEM):
            continue
        beyond = next((grant for grant in new if not may_give(books.grants_of(giver), grant)), None)
        if beyond is not None:
            raise InvalidField(
                "principal",
                f"{giver} has made token {token_id} of {principal}, may have kept it, and may not give {beyond}",
                hint=f"aliquot access token revoke {token_id}, then give the role, and make a new token",
            )


def _check_nobody_s_name(known: Known, by: Actor, principal: str) -> None:
    """A provider vouches for people, and Kubernetes for pods: a token that somebody else makes in such a name would act
    and be recorded as them. The pool's own folder may, since whoever enters it is the pool.
    """
    if by.principal == SYSTEM:
        return
    books = known.access
    if principal.startswith(PODS) or any(books.tokens[each].session for each in books.tokens_of.get(principal, ())):
        raise RoleMissing(
            f"{principal} logs in by a provider that vouches for it, and nobody else makes tokens in that name",
            principal=by.principal,
            hint="for a program, choose a name of its own: aliquot access token NAME",
        )


def _check_room_for_token(known: Known, principal: str, grants: Sequence[Grant], *, own: bool) -> None:
    """`own`: it makes the token itself, for which others leave it room."""
    books = known.access
    account = records.account(grants)
    _check_share("tokens", account, books.tokens_to.get(account, 0), len(books.tokens), records.TOKENS_MAX)
    made = [books.tokens[token_id].issued_by == principal for token_id in books.tokens_of.get(principal, ())]
    if made.count(own) >= records.TOKENS_PER_PRINCIPAL_MAX:
        raise InvalidField(
            "principal",
            f"{principal} has {made.count(own)} tokens {'of its own' if own else 'by others'}, which is the bound",
            hint="revoke those that are not needed (`aliquot access token ls`)",
        )


def open_session(known: Known, command: c.OpenSession, now_ms: int) -> Decision[Token]:
    """A token with roles of its own, for a while. The oldest of too many sessions ends."""
    token, by, books = command.token, command.by, known.access
    check_principal(token.principal)
    if not by.principal.startswith(VOUCHERS):
        raise RoleMissing(f"{by.principal} may not vouch for others", principal=by.principal)
    pod = by.principal.startswith(VOUCHERS[1])
    if token.principal == FIRST_ADMIN or token.principal.startswith(PODS) != pod:
        raise InvalidField(
            "principal", f"{by.principal} can't vouch for {token.principal}: that name is the pool's own"
        )
    if not token.grants:
        raise InvalidField("grants", f"{token.principal} is given no role, so a session would open nothing")
    for grant in token.grants:
        _check_grant(grant)
    expires_ms = min(token.expires_ms, now_ms + records.SESSION_MS_MAX)
    if expires_ms <= now_ms:
        raise InvalidField("expires_ms", "the session would be over already")
    own = [books.tokens[token_id] for token_id in books.tokens_of.get(token.principal, ())]
    sessions = sorted((each for each in own if each.session), key=lambda each: (each.created_ms, each.token_id))
    over = len(sessions) + 1 - records.SESSIONS_PER_PRINCIPAL_MAX
    ended = _with_made(known, (each.token_id for each in sessions[: max(0, over)]))
    if not ended:
        account = records.account(token.grants)
        _check_share("tokens", account, books.tokens_to.get(account, 0), len(books.tokens), records.TOKENS_MAX)
        _check_room(known, token.principal, token.grants, [])
    issued = replace(
        token,
        created_ms=now_ms,
        expires_ms=expires_ms,
        issued_by=by.principal,
        generation=known.enrolment.newest,
    )
    facts: tuple[Fact, ...] = (TokenIssued(now_ms, issued),)
    return Decision((*facts, TokensEnded(now_ms, ended)) if ended else facts, issued)


def revoke_tokens(known: Known, command: c.RevokeTokens, now_ms: int) -> Decision[tuple[Token, ...]]:
    """End tokens by id, or all of a principal's. Anybody may end their own."""
    books = known.access
    ids = dict.fromkeys(command.token_ids)
    if command.principal:
        ids |= dict.fromkeys(books.tokens_of.get(command.principal, ()))
    for token_id in ids:
        token = books.tokens.get(token_id)
        if token is None:
            raise TokenNotFound(f"there is no token {token_id[:64]!r}", hint="`aliquot access token ls` lists them")
        if token.principal != command.by.principal:
            _require_may_replace(known, command.by, token.principal, books.grants_of_token(token))
    if not ids:
        return Decision((), ())
    ended = _with_made(known, ids)
    return Decision((TokensEnded(now_ms, ended),), tuple(books.tokens[token_id] for token_id in ended))


def _with_made(known: Known, token_ids: Iterable[str]) -> tuple[str, ...]:
    """These tokens, and after them those that were made by the sessions among them."""
    first = tuple(token_ids)
    made = (each for token_id in first for each in known.access.tokens_by.get(token_id, ()))
    return tuple(dict.fromkeys((*first, *made)))


def acted(command: c.OnBehalf[Any], now_ms: int) -> Acted:
    """Who gave a command from which something follows."""
    by = command.by
    return Acted(now_ms, by.principal, by.token_id, by.peer, by.action, command.subject)


def require_token(known: Known, by: Actor, now_ms: int) -> None:
    """A token that ended while its command waited for its turn brings about nothing more, and no other token."""
    if not by.token_id or ":" in by.principal:
        return  # the pool itself, or an invite, which the command looks at
    token = known.access.tokens.get(by.token_id)
    if token is None or token.expired(now_ms):
        raise TokenEnded(f"token {by.token_id} has ended", hint="`aliquot login` again")


def expired(known: Known, token_id: str, now_ms: int) -> list[Fact]:
    """A token that has been over for long enough."""
    token = known.access.tokens.get(token_id)
    if token is None or not token.expires_ms or token.forget_ms > now_ms:
        return []
    return [TokensEnded(now_ms, (token_id,))]


def check_principal(name: str, field: str = "principal") -> None:
    """Raises InvalidField for a name that nobody can have."""
    with fields_refused():
        names.validate_text(name, field, limits.MAX_NAME_CHARS)
    if not PRINCIPAL.fullmatch(name):
        raise InvalidField(
            field, f"{name[:64]!r} is no name of a principal", hint="letters, digits and ._@/+- such as ann@example.com"
        )


_ADMIN = Grant(Role.ADMIN)


def _check_grant(grant: Grant) -> None:
    if grant.role not in GIVABLE:
        raise InvalidField(
            "grant.role",
            f"{grant.role.name.lower()} is not given to principals",
            hint="one of " + ", ".join(role.name.lower() for role in sorted(GIVABLE)),
        )
    if grant.scope:
        with fields_refused():
            names.validate_tenant(grant.scope, "grant.scope")
        if grant.role not in (Role.VIEWER, Role.USER, Role.MANAGER):
            raise InvalidField(
                "grant.scope", f"{grant.role.name.lower()} is a role on the whole pool", hint="leave it empty"
            )


def _may_give(known: Known, by: Actor, grant: Grant, *, lasting: bool = False) -> bool:
    """`lasting`: for good. What a session brings ends with it, and so does what is done by tokens that it has made:
    neither gives anything that would outlast it, to nobody.
    """
    if by.principal == SYSTEM:
        return True
    token = known.access.tokens.get(by.token_id)
    own = known.access.grants_of(by.principal) if token is None or not (lasting and token.source) else ()
    of_session = token.grants if token is not None and not lasting else ()
    return may_give(own + of_session, grant)


def _require_may_replace(known: Known, by: Actor, principal: str, held: Sequence[Grant]) -> None:
    """Whether one may make or end tokens of a principal that holds these. A refusal does not say what it holds."""
    if not all(_may_give(known, by, grant) for grant in held or (LEAST,)):
        raise RoleMissing(
            f"{by.principal} may not make or end tokens of {principal}, whose roles it may not all give",
            principal=by.principal,
            hint="an administrator may",
        )


def _require_may_give(known: Known, by: Actor, grant: Grant, *, lasting: bool = False) -> None:
    if lasting and not _may_give(known, by, grant, lasting=True) and _may_give(known, by, grant):
        raise RoleMissing(
            f"{by.principal} may not give {grant} by a session, which it would outlast",
            principal=by.principal,
            hint="who has been granted the role here may (`aliquot access grant`); a login rule gives it to a group",
        )
    if not _may_give(known, by, grant, lasting=lasting):
        raise RoleMissing(
            f"{by.principal} may not give or take {grant}: nobody gives more than they have",
            principal=by.principal,
            hint=f"needs {'manager on ' + grant.scope if grant.scope else 'admin'}",
        )


def _check_room(known: Known, principal: str, held: Sequence[Grant], new: Sequence[Grant]) -> None:
    """Whether a principal may have these roles beside those that it holds, and be one more if it is new."""
    books = known.access
    for account in {records.account([grant]): None for grant in new}:
        of_account = sum(records.account([grant]) == account for grant in (*held, *new))
        if of_account > records.GRANTS_PER_PRINCIPAL_MAX:
            where = f"on {account} and below" if account else "on the pool"
            raise InvalidField("grant", f"{principal} has {of_account - 1} roles {where}, which is the bound")
    if principal not in books.principals:
        account, most = records.account((*held, *new)), records.PRINCIPALS_MAX
        _check_share("principals", account, books.principals_to.get(account, 0), len(books.principals), most)


def _check_share(what: str, account: str, own: int, there_are: int, most: int) -> None:
    """One tenant, whose managers make as many as they like, leaves room for those of others."""
    if there_are >= most:
        raise InvalidField("principal", f"there are {most} {what}, which is the bound")
    if account and own >= records.SHARE * (most - there_are):
        raise InvalidField(
            "principal",
            f"{account} has {own} {what}, and {most - there_are} are left for everybody",
            hint="revoke tokens and roles that are not needed (`aliquot access token ls`)",
        )


def _other_administrator(known: Known, principal: str) -> bool:
    return any(_ADMIN in other.grants for name, other in known.access.principals.items() if name != principal)


DECIDES = Decides(
    commands=by_kind(grant_role, revoke_role, issue_token, open_session, revoke_tokens), due={Due.TOKEN: expired}
)
