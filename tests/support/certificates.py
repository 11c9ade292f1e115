"""Certificates for tests: an authority, and what it signs."""

from __future__ import annotations

import datetime
import ipaddress
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

PEM = serialization.Encoding.PEM
PKCS8 = serialization.PrivateFormat.PKCS8


class CertificateFiles(NamedTuple):
    """The PEM files of a certificate, with those that signed it, and of its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates."""

    def __init__(self, directory: Path, name: str = "root") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._root = self._sign(self._key, name, name, days=3650, is_authority=True)
        # servers send this one with their own
        self._middle_key = ec.generate_private_key(ec.SECP256R1())
        self._middle = self._sign(
            self._middle_key, f"{name} intermediate", name, days=365, is_authority=True
        )
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(self._root.public_bytes(PEM))

    def issue(self, name: str, *, days: float = 90, password: str = "") -> CertificateFiles:
        """Issue a certificate for localhost, and for a host or a client of this name."""
        key = ec.generate_private_key(ec.SECP256R1())
        issuer = self._middle.subject.rfc4514_string().removeprefix("CN=")
        certificate = self._sign(key, name, issuer, days=days, is_authority=False)
        encryption: serialization.KeySerializationEncryption = serialization.NoEncryption()
        if password:
            encryption = serialization.BestAvailableEncryption(password.encode())
        files = CertificateFiles(
            self._directory / f"{name}.crt.pem", self._directory / f"{name}.key.pem"
        )
        chain = (certificate, self._middle)
        files.cert.write_bytes(b"".join(each.public_bytes(PEM) for each in chain))
        files.key.write_bytes(key.private_bytes(PEM, PKCS8, encryption))
        return files

    def _sign(
        self,
        key: ec.EllipticCurvePrivateKey,
        name: str,
        issuer: str,
        *,
        days: float,
        is_authority: bool,
    ) -> x509.Certificate:
        now = datetime.datetime.now(datetime.UTC)
        ends = now + datetime.timedelta(days=days)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, ends) - datetime.timedelta(days=1))
            .not_valid_after(ends)
            .add_extension(x509.BasicConstraints(is_authority, None), critical=True)
        )
        if not is_authority:
            address = ipaddress.ip_address("127.0.0.1")
            usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
            builder = builder.add_extension(
                x509.SubjectAlternativeName(
                    [x509.DNSName("localhost"), x509.DNSName(name), x509.IPAddress(address)]
                ),
                critical=False,
            ).add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        signer = self._key if is_authority else self._middle_key
        return builder.sign(signer, hashes.SHA256())
