"""One-off certificates: an authority for one application, which nobody can sign with later.

It needs the package `cryptography`. The names tell the sides of one application apart, and the
authority the applications.
"""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock.card.link.tls import TlsIdentity

if TYPE_CHECKING:
    from collections.abc import Sequence

_BACKDATED = timedelta(minutes=5)  # clocks of nodes differ
LIFE = timedelta(days=90)  # a connection that is open outlives its certificates


def issue(names: Sequence[str], life: timedelta = LIFE) -> dict[str, TlsIdentity]:
    """An identity for each name (a URI such as penstock:app:7:card:2) under a new authority."""
    now = datetime.now(timezone.utc)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _subject(f"penstock-card-{x509.random_serial_number():x}")
    authority = (
        _builder(subject, subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return {name: _identity(name, authority, key, now, life) for name in names}


def _identity(
    name: str,
    authority: x509.Certificate,
    signing: ec.EllipticCurvePrivateKey,
    now: datetime,
    life: timedelta,
) -> TlsIdentity:
    key = ec.generate_private_key(ec.SECP256R1())
    both = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    signer = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key())
    made = (
        _builder(_subject(name), authority.subject, key.public_key(), now, life)
        .add_extension(
            x509.SubjectAlternativeName([x509.UniformResourceIdentifier(name)]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(both, critical=False)
        .add_extension(signer, critical=False)
        .sign(signing, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    pem = serialization.Encoding.PEM
    return TlsIdentity(made.public_bytes(pem), private, authority.public_bytes(pem))


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
        .not_valid_before(now - _BACKDATED)
        .not_valid_after(now + life)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_cert_sign=signs, crl_sign=signs, content_commitment=False,
        key_encipherment=False, data_encipherment=False, key_agreement=False,
        encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name[:60])])
