"""Certificates for a development cluster: an authority of its own, and one certificate for each node and client.

It writes, into the folder that `[security]` names: `ca.pem` and `ca.key`, `node-orders-1.pem` and `.key`,
`client-till.pem` and `.key`. Keys are readable by their owner only. Valid certificates are left alone, so the command
may be repeated after a node or a client was added; certificates that expire soon are renewed by the same authority.

The `cryptography` package makes them (extra `secure`), and nothing else needs it: a running cluster uses Python's
`ssl`. The openssl program was the alternative; its options and defaults differ between versions and systems, and a URI
in subjectAltName needs a configuration file. In production, any authority works that puts the URI of
`live/security/permissions.py` into its certificates.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amcast.kernel.errors import UsageError
from amcast.live.config.cluster import Cluster
from amcast.live.private_files import replace_file
from amcast.live.security.permissions import Subject

if TYPE_CHECKING:
    from cryptography import x509

DAYS: Final = 365
AUTHORITY_DAYS: Final = 3650
CLOCK_SKEW: Final = timedelta(minutes=5)
"""Certificates are valid from this long before they were made, because clocks of machines differ."""


@dataclass(frozen=True)
class CertificateFile:
    """One certificate file after `make_certificates`."""

    file: Path
    name: str
    is_new: bool
    """True if it was made now; False if it existed and is valid."""
    valid_until: datetime


def list_subjects(cluster: Cluster) -> list[Subject]:
    """The owners that need a certificate: nodes, then clients."""
    nodes = [Subject(cluster.name, "node", name) for name in cluster.nodes()]
    return nodes + [Subject(cluster.name, "client", name) for name in cluster.clients]


def make_certificates(
    cluster: Cluster, days: int = DAYS, renew_days: int = 30, renew: bool = False
) -> list[CertificateFile]:
    """Makes certificates that are missing or expire within `renew_days`; with `renew`, all but the authority's."""
    if days < 1:
        raise UsageError(f"days = {days}; expected 1 or more")
    _require_cryptography()
    base = cluster.file.parent
    folder = base / cluster.security.certificates
    file = base / cluster.security.authority
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    fresh = not file.exists()
    authority = Authority.create(file, cluster.name) if fresh else Authority.read(file)
    made = [CertificateFile(file, "authority", fresh, authority.certificate.not_valid_after_utc)]
    soon = datetime.now(UTC) + timedelta(days=min(renew_days, days - 1))
    for subject in list_subjects(cluster):
        target = folder / f"{subject.file_stem}.pem"
        until = None if renew or fresh else authority.valid_until(target, subject)
        if until is None or until < soon:
            made.append(CertificateFile(target, str(subject), True, authority.issue(target, subject, days)))
        else:
            made.append(CertificateFile(target, str(subject), False, until))
    return made


def revoke_certificates(cluster: Cluster, names: Sequence[str]) -> tuple[Path, int]:
    """Adds the present certificates of some nodes ("orders/1") and clients ("till") to the revocation list of the
    cluster; returns its file and how many certificates are in it."""
    from cryptography import x509

    _require_cryptography()
    if not cluster.security.revocations:
        raise UsageError(f"{cluster.file}: security.revocations is not set; expected the file of the revocation list")
    base = cluster.file.parent
    owners = {subject.name: subject for subject in list_subjects(cluster)}
    serials: set[int] = set()
    for name in names:
        if name not in owners:
            raise UsageError(f"{name!r} has no certificate; expected one of: {', '.join(owners)}")
        file = base / cluster.security.certificates / f"{owners[name].file_stem}.pem"
        try:
            serials.add(x509.load_pem_x509_certificate(file.read_bytes()).serial_number)
        except (OSError, ValueError):
            raise UsageError(f"{file}: it cannot be read; expected the certificate of {owners[name]}") from None
    file = base / cluster.security.revocations
    return file, len(Authority.read(base / cluster.security.authority).revoke(file, serials))


def _require_cryptography() -> None:
    try:
        import cryptography  # noqa: F401
    except ImportError:
        raise UsageError(
            "the package cryptography is not installed; expected: pip install 'amcast[secure]',"
            " or certificates of your own authority (docs/operate.md)"
        ) from None


class Authority:
    """A certificate authority in two files."""

    def __init__(self, certificate: "x509.Certificate", key: Any) -> None:
        self.certificate = certificate
        self._key = key

    @classmethod
    def create(cls, file: Path, cluster: str) -> "Authority":
        """Makes a new, self-signed authority."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"amcast {cluster[:40]} development CA")])
        usage = _key_usage(signs_certificates=True)
        builder = _begin_certificate(name, name, key.public_key(), AUTHORITY_DAYS)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        certificate = _sign(builder.add_extension(usage, critical=True), key, key.public_key())
        _write_key(file.with_suffix(".key"), key)
        _write(file, certificate)
        return cls(certificate, key)

    @classmethod
    def read(cls, file: Path) -> "Authority":
        """Reads an existing authority."""
        from cryptography import x509
        from cryptography.hazmat.primitives import serialization

        keys = file.with_suffix(".key")
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            key = serialization.load_pem_private_key(keys.read_bytes(), None)
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not a PEM file without a password"
            raise UsageError(
                f"{file} and {keys.name}: {reason}; expected an authority that `amcast certs` made"
            ) from None
        return cls(certificate, key)

    def issue(self, file: Path, subject: Subject, days: int) -> datetime:
        """Writes a certificate and a new key for one owner; returns when it expires."""
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import ExtendedKeyUsageOID as Use

        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, str(subject)[:64])])
        uses = [Use.CLIENT_AUTH, Use.SERVER_AUTH] if subject.kind == "node" else [Use.CLIENT_AUTH]
        builder = _begin_certificate(name, self.certificate.subject, key.public_key(), days)
        for extension, critical in (
            (x509.BasicConstraints(ca=False, path_length=None), True),
            (_key_usage(signs_certificates=False), True),
            (x509.ExtendedKeyUsage(uses), False),
            (x509.SubjectAlternativeName([x509.UniformResourceIdentifier(subject.uri)]), False),
        ):
            builder = builder.add_extension(extension, critical=critical)
        certificate = _sign(builder, self._key, self.certificate.public_key())
        _write_key(file.with_suffix(".key"), key)
        _write(file, certificate)
        return certificate.not_valid_after_utc

    def revoke(self, file: Path, serials: set[int]) -> set[int]:
        """Adds certificates to a revocation list, which is created if there is none; returns all serials in it."""
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.serialization import Encoding

        now = datetime.now(UTC)
        revoked = dict.fromkeys(serials, now)
        if file.exists():
            try:
                for one in x509.load_pem_x509_crl(file.read_bytes()):
                    revoked[one.serial_number] = one.revocation_date_utc
            except ValueError:
                raise UsageError(f"{file}: it is not a PEM revocation list; expected one of this authority") from None
        builder = x509.CertificateRevocationListBuilder().issuer_name(self.certificate.subject)
        builder = builder.last_update(now - CLOCK_SKEW).next_update(now + timedelta(days=AUTHORITY_DAYS))
        for serial, date in sorted(revoked.items()):
            one_revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(date).build()
            builder = builder.add_revoked_certificate(one_revoked)
        replace_file(file, builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM), 0o644)
        return set(revoked)

    def valid_until(self, file: Path, subject: Subject) -> datetime | None:
        """When a certificate expires; None if it is missing, of another authority or of another owner."""
        from cryptography import x509
        from cryptography.exceptions import InvalidSignature

        if not file.exists() or not file.with_suffix(".key").exists():
            return None
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            certificate.verify_directly_issued_by(self.certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except (ValueError, TypeError, InvalidSignature, x509.ExtensionNotFound):
            return None
        owners = names.get_values_for_type(x509.UniformResourceIdentifier)
        return certificate.not_valid_after_utc if owners == [subject.uri] else None


def _begin_certificate(name: Any, issuer: Any, public: Any, days: int) -> "x509.CertificateBuilder":
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
    )


def _sign(builder: "x509.CertificateBuilder", key: Any, public: Any) -> "x509.Certificate":
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes

    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    return builder.add_extension(issuer, critical=False).sign(key, hashes.SHA256())


def _key_usage(signs_certificates: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _write(file: Path, certificate: "x509.Certificate") -> None:
    from cryptography.hazmat.primitives.serialization import Encoding

    replace_file(file, certificate.public_bytes(Encoding.PEM), 0o644)


def _write_key(file: Path, key: Any) -> None:
    """Writes a key that is readable by its owner only, from the first byte on."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    replace_file(file, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()), 0o600)
