"""Everybody who vouches for callers of this pool."""

from __future__ import annotations

from aliquot.common.clock import Clock
from aliquot.coordinator.errors import LoginNotOffered
from aliquot.coordinator.logins.config import OidcSettings
from aliquot.coordinator.logins.oidc import OidcLogins
from aliquot.coordinator.logins.vouching import Vouched
from aliquot.v1 import access_pb2


class Logins:
    """Those that the settings name."""

    def __init__(self, oidc: OidcSettings, clock: Clock) -> None:
        self._oidc = OidcLogins(oidc, clock) if oidc.issuer else None

    def describe(self) -> access_pb2.DescribeLoginResponse:
        """What a caller needs to know to be vouched for."""
        if self._oidc is None:
            return access_pb2.DescribeLoginResponse()
        settings = self._oidc.settings
        return access_pb2.DescribeLoginResponse(
            issuer=settings.issuer,
            client_id=settings.client_id,
            client_secret=settings.client_secret,
            scopes=settings.scopes,
        )

    async def vouch(self, request: access_pb2.LoginRequest) -> Vouched:
        """Who the caller is. Raises LoginRefused, LoginRuleMissing, LoginNotOffered, ProviderUnavailable."""
        if request.id_token and self._oidc is not None:
            return await self._oidc.vouch(request.id_token, request.nonce)
        raise LoginNotOffered(
            "this pool does not take that kind of login",
            hint="ask an administrator for a login string: aliquot access token NAME",
        )
