"""Mutual TLS: both sides show a certificate of the same authority, and the certificate names its owner.

TLS 1.3 only. Host names are not compared: identity is a name ("orders/1"), not an address, and `Rights.check` compares
it with what the peer claims in its HELLO. Whoever shows no certificate, or one of another authority, does not get as
far as a HELLO. Keys stay in their files; no message and no log line ever holds one.
"""

import contextlib
import ssl
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.live.errors import RefusedError
from amcast.live.security.permissions import Permissions, Subject

HANDSHAKE_ROUNDS: Final = 3
"""Each side speaks so often, at most, until hands are shaken."""


class Security:
    """One process' certificate, the authority that it trusts, and everybody's rights."""

    def __init__(self, authority: Path, folder: Path, me: Subject, rights: Permissions) -> None:
        self.me = me
        self.permissions = rights
        self._authority = authority
        self._certificate = folder / f"{me.file_stem}.pem"
        self._key = folder / f"{me.file_stem}.key"
        self.server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (self.server, self.client):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
        # Tickets would let a connection resume without showing its certificate again.
        self.server.num_tickets = 0
        self.reload()

    def reload(self) -> None:
        """Read certificate, key and authority again: new connections use them, open ones go on."""
        for file, what in (
            (self._authority, "the authority's certificate (security.authority)"),
            (self._certificate, f"the certificate of {self.me} (security.certificates)"),
            (self._key, f"the key of {self.me} (security.certificates)"),
        ):
            if not file.is_file():
                raise UsageError(
                    f"{file} does not exist; expected {what}; `amcast certs` makes it,"
                    ' security.mode = "plain" does without'
                )
        for context in (self.server, self.client):
            try:
                context.load_verify_locations(self._authority)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(f"{self._authority}: {describe_error(error)}; expected a PEM certificate") from None
            try:
                context.load_cert_chain(self._certificate, self._key, password=_no_password)
            except (ssl.SSLError, OSError, ValueError) as error:
                raise UsageError(
                    f"{self._certificate}: {describe_error(error)}; expected a PEM certificate with its key, without a"
                    f" password, in {self._key.name}"
                ) from None
        self._verify_own_certificate()

    def _verify_own_certificate(self) -> None:
        """Find out now, not at the first connection, that a certificate names somebody else or is not accepted: shake
        hands with myself, in memory."""
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        # A client's certificate cannot serve; a context without a purpose lets it, for this one handshake.
        server = self.server.wrap_bio(there, back, server_side=True)
        client = self._context_without_purpose().wrap_bio(back, there)
        try:
            for _ in range(HANDSHAKE_ROUNDS):
                _advance_handshake(client)
                _advance_handshake(server)
            named = parse_subject(server.getpeercert())
        except (ssl.SSLError, RefusedError) as error:
            raise UsageError(f"{self._certificate}: {describe_error(error)}") from None
        if named != self.me:
            raise UsageError(
                f"{self._certificate} names {named} of cluster {named.cluster!r};"
                f" expected {self.me} of {self.me.cluster!r}"
            )

    def _context_without_purpose(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        return context


def _advance_handshake(end: ssl.SSLObject) -> None:
    """Go on with a handshake as far as it can."""
    with contextlib.suppress(ssl.SSLWantReadError):
        end.do_handshake()


def parse_subject(certificate: dict[str, Any] | None) -> Subject:
    """Whom a peer's verified certificate names."""
    if not certificate:
        raise RefusedError("it shows no certificate")
    return Subject.parse([value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"])


def describe_error(error: BaseException) -> str:
    """Why TLS failed, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def _no_password() -> str:
    """Never ask on the terminal."""
    return ""
