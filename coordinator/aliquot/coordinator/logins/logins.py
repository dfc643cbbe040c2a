"""Everybody who vouches for callers of this pool."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aliquot.common.clock import Clock
from aliquot.common.duties import Tell
from aliquot.coordinator.errors import LoginNotOffered
from aliquot.coordinator.logins.config import OidcSettings, PodSettings, Vouched
from aliquot.coordinator.parts import load
from aliquot.v1 import access_pb2

if TYPE_CHECKING:
    from aliquot.coordinator.logins.oidc import OidcLogins
    from aliquot.coordinator.logins.pods import PodLogins


class Logins:
    """Those that the settings name."""

    def __init__(self, oidc: OidcSettings, pods: PodSettings, clock: Clock, tell: Tell) -> None:
        # Both check signatures, with libraries that take as much memory as all of our own modules.
        self._oidc: OidcLogins | None = load("login by OpenID")(oidc, clock, tell) if oidc.issuer else None
        self._pods: PodLogins | None = load("login of pods")(pods, clock) if pods.rules or pods.nodes else None

    def describe(self) -> access_pb2.DescribeLoginResponse:
        """What a caller needs to know to be vouched for."""
        answer = access_pb2.DescribeLoginResponse()
        if self._oidc is not None:
            settings = self._oidc.settings
            answer.issuer, answer.client_id = settings.issuer, settings.client_id
            answer.client_secret = settings.client_secret
            answer.scopes.extend(settings.scopes)
        if self._pods is not None:
            answer.pods_audience = self._pods.settings.audience
        return answer

    async def vouch(self, request: access_pb2.LoginRequest) -> Vouched:
        """Who the caller is. Raises LoginNotOffered, and what those raise who are asked."""
        if request.id_token and self._oidc is not None:
            return await self._oidc.vouch(request.id_token, request.nonce)
        if request.service_account_token and self._pods is not None:
            return await self._pods.vouch(request.service_account_token)
        raise _not_offered()

    async def node_of(self, request: access_pb2.LoginRequest) -> Vouched:
        """Who wants to join, with its node. Raises LoginNotOffered, and what those raise who are asked."""
        if request.service_account_token and self._pods is not None:
            return await self._pods.node_of(request.service_account_token)
        raise _not_offered()


def _not_offered() -> LoginNotOffered:
    return LoginNotOffered(
        "this pool does not take that kind of login",
        hint="ask an administrator for a login string: aliquot access token NAME",
    )
