"""TLS certificates of the webhook: its own authority and server certificate, renewed in time.

All replicas share them through one Secret. Each step of a renewal is published before the next step
relies on it: the API server trusts a new authority before a server uses a certificate signed by it,
and trusts the old authority until then.
"""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

BACKDATED = timedelta(minutes=5)  # clocks of API servers differ


@dataclass(frozen=True)
class Lives:
    """Lifetimes of certificates; each is renewed when a third of its lifetime is left."""

    authority: timedelta = timedelta(days=5 * 365)
    server: timedelta = timedelta(days=90)


@dataclass(frozen=True)
class Certificates:
    """Certificates and keys as PEM. `trusted` has one or more authorities, the signer first."""

    trusted: bytes
    authority_key: bytes
    server: bytes
    server_key: bytes

    @classmethod
    def make(cls, names: Sequence[str], lives: Lives, now: datetime) -> Certificates:
        """Creates a new authority, and a certificate for a server with these names."""
        authority, key = _authority(lives, now)
        server, server_key = _server(names, authority, key, lives, now)
        return cls(_pem(authority), _pem_key(key), _pem(server), _pem_key(server_key))

    def renewed(self, names: Sequence[str], lives: Lives, now: datetime) -> Certificates:
        """The certificates after the next step of a renewal if one is due, else the same ones.

        The API server must already trust the authorities in `trusted`.

        Raises:
            ValueError: the certificates cannot be read; make new ones.
        """
        trusted = x509.load_pem_x509_certificates(self.trusted)
        server = x509.load_pem_x509_certificate(self.server)
        signer = trusted[0]
        if _is_due(signer, lives.authority, now):
            authority, key = _authority(lives, now)
            kept = [one for one in trusted if one.not_valid_after_utc > now]
            pem = b"".join(map(_pem, (authority, *kept)))
            return Certificates(pem, _pem_key(key), self.server, self.server_key)
        is_ours = server.issuer == signer.subject and _names(server) == list(names)
        if not is_ours or _is_due(server, lives.server, now):
            signing = serialization.load_pem_private_key(self.authority_key, None)
            if not isinstance(signing, ec.EllipticCurvePrivateKey):
                raise ValueError("the authority's key is of another kind")
            new, key = _server(names, signer, signing, lives, now)
            return Certificates(self.trusted, self.authority_key, _pem(new), _pem_key(key))
        kept = [one for one in trusted if one.not_valid_after_utc > now or one is signer]
        return Certificates(
            b"".join(map(_pem, kept)), self.authority_key, self.server, self.server_key
        )


def _is_due(one: x509.Certificate, life: timedelta, now: datetime) -> bool:
    return one.not_valid_after_utc - now < life / 3


def _names(server: x509.Certificate) -> list[str]:
    found = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    dns = found.get_values_for_type(x509.DNSName)
    return [*dns, *(str(one) for one in found.get_values_for_type(x509.IPAddress))]


def _authority(lives: Lives, now: datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # Each authority has its own subject, which identifies the signer of a server certificate.
    subject = _name(f"penstock-admit-{x509.random_serial_number():x}"[:60])
    made = (
        _builder(subject, subject, key.public_key(), now, lives.authority)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    return made, key


def _server(
    names: Sequence[str],
    authority: x509.Certificate,
    signing: ec.EllipticCurvePrivateKey,
    lives: Lives,
    now: datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    made = (
        _builder(_name(names[0][:60]), authority.subject, key.public_key(), now, lives.server)
        .add_extension(
            x509.SubjectAlternativeName([_general(name) for name in names]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False
        )
        .sign(signing, hashes.SHA256())
    )
    return made, key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    now: datetime,
    life: timedelta,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _pem(one: x509.Certificate) -> bytes:
    return one.public_bytes(serialization.Encoding.PEM)


def _pem_key(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def utc_now() -> datetime:
    """The current time in UTC."""
    return datetime.now(timezone.utc)
