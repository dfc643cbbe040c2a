"""An authority that certifies servers and callers on this machine, made with the openssl command."""

from __future__ import annotations

import datetime as dt
import ipaddress
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from aliquot.common import certificates

OPENSSL = shutil.which("openssl")
_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority in a folder."""

    folder: Path

    @classmethod
    def create(cls, folder: Path) -> Authority:
        """A new one, in a folder that is made for it. Needs openssl."""
        folder.mkdir()
        made = cls(folder)
        openssl("req", "-x509", *_NEW_KEY, "-subj", "/CN=test authority", "-days", "2",
                "-keyout", folder / "ca.key", "-out", made.ca)  # fmt: skip
        return made

    @property
    def ca(self) -> Path:
        """What to trust: its own certificate."""
        return self.folder / "ca.pem"

    def certify_until(self, name: str, ends: dt.datetime, days: int = 80) -> tuple[Path, Path]:
        """One that began so many days before it ends, which openssl can't date back."""
        certificate, key = self.certify(name)
        signing = serialization.load_pem_private_key((self.folder / "ca.key").read_bytes(), password=None)
        mine = serialization.load_pem_private_key(key.read_bytes(), password=None)
        assert isinstance(signing, ec.EllipticCurvePrivateKey)
        assert isinstance(mine, ec.EllipticCurvePrivateKey)
        issuer = x509.load_pem_x509_certificate(self.ca.read_bytes()).subject
        made = certificates.leaf(
            certificates.named(name),
            mine.public_key(),
            issuer,
            signing,
            certificates.Validity(ends - dt.timedelta(days=days), ends),
            alternatives=[x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))],
            purpose=x509.oid.ExtendedKeyUsageOID.SERVER_AUTH,
        )
        certificate.write_bytes(made.public_bytes(serialization.Encoding.PEM))
        return certificate, key

    def certify(self, name: str) -> tuple[Path, Path]:
        """A certificate of that common name for this machine, and its key."""
        certificate, key, request = (self.folder / f"{name}.{kind}" for kind in ("pem", "key", "csr"))
        openssl("req", *_NEW_KEY, "-subj", f"/CN={name}", "-keyout", key, "-out", request)
        extensions = self.folder / "extensions"
        extensions.write_text("subjectAltName=DNS:localhost,IP:127.0.0.1\n")
        openssl("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self.folder / "ca.key", "-CAcreateserial",
                "-days", "2", "-extfile", extensions, "-out", certificate)  # fmt: skip
        return certificate, key


def openssl(*arguments: str | Path) -> None:
    """Run the command; it is an error where it is one."""
    assert OPENSSL is not None
    subprocess.run([OPENSSL, *arguments], check=True, capture_output=True)
