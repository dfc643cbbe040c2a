"""The administrator's token of a local pool: its coordinator makes it, and this user keeps it while the pool is up."""

from __future__ import annotations

from pathlib import Path

from aliquot.cli.localpool.layout import Layout
from aliquot.client import NotLoggedIn, Pool
from aliquot.client.credentials import Credential, CredentialsFile, read_token_file
from aliquot.common.own_files import write_whole
from aliquot.common.tls import ClientTls


class SigningIn:
    """The token of one pool, in the coordinator's file and in the user's credentials."""

    def __init__(self, layout: Layout, credentials: CredentialsFile | None, address: str = "") -> None:
        self._layout = layout
        self._credentials = credentials
        self._address = address

    @property
    def token_file(self) -> Path | None:
        """The coordinator's file; None if it has made none."""
        return self._layout.admin_token if self._layout.admin_token.exists() else None

    def sign_in(self, address: str, tls: ClientTls | None = None) -> None:
        """Make sure that the file's token counts, and keep it for the pool's address.

        It counts no more where somebody has revoked it; then the coordinator's own socket gives another.
        """
        if not self._counts(address, tls) and self._layout.admin_socket.exists():
            with Pool(f"unix:{self._layout.admin_socket}", token="") as pool:
                made = pool.access.bootstrap()
            write_whole(self._layout.admin_token, made.token.encode())
        file = self.token_file
        if self._credentials is not None and file is not None:
            ca = tls.ca_file.read_text(encoding="ascii") if tls is not None and tls.ca_file is not None else ""
            self._credentials.put(Credential((address,), read_token_file(file), ca))
        self._address = address

    def sign_out(self) -> None:
        """Forget it again: another coordinator may listen there next."""
        if self._credentials is not None and self._address:
            self._credentials.remove([self._address])

    def _counts(self, address: str, tls: ClientTls | None) -> bool:
        file = self.token_file
        if file is None:
            return False
        try:
            with Pool(address, tls=tls, token_file=file) as pool:
                pool.access.whoami()
        except NotLoggedIn:
            return False
        return True
