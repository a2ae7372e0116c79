"""Mutual TLS: both sides show a certificate of the same authority, and the certificate names its owner.

TLS 1.3 only. Host names are not compared: the identity is a name ("orders/1"), not an address, and `Permissions.check`
compares it with the process id that the peer claims in its HELLO. A peer without a certificate, or with one of another
authority, does not get as far as a HELLO. Keys stay in their files; no message and no log line ever contains one.
"""

import contextlib
import ssl
import time
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.live.errors import RefusedError
from amcast.live.security.permissions import Permissions, Subject

HANDSHAKE_ROUNDS: Final = 3
"""Upper bound on the flights of each side in a handshake."""


class Security:
    """The certificate of one process, the authority that it trusts, and the permissions of the cluster."""

    def __init__(
        self, authority: Path, folder: Path, me: Subject, permissions: Permissions, revocations: Path | None = None
    ) -> None:
        self.me = me
        self.permissions = permissions
        self._authority = authority
        self._revocations = revocations
        self._certificate = folder / f"{me.file_stem}.pem"
        self._key = folder / f"{me.file_stem}.key"
        self._trust = self._read_trust()
        self.server, self.client = self._make_contexts()
        """Contexts for accepted and for dialled connections; `reload` replaces them."""

    def reload(self) -> bool:
        """Reads certificate, key, authority and revocations again, for new connections; an error changes nothing.

        The new contexts know nothing of a former authority. Returns True if the authority or the revocations have
        changed: an open connection may then belong to somebody who is trusted no more.
        """
        # Before the contexts: what is replaced between the two is a change again at the next reload, not never.
        trust = self._read_trust()
        self.server, self.client = self._make_contexts()
        before, self._trust = self._trust, trust
        return before != trust

    def _read_trust(self) -> bytes:
        """The content of the files that say who is trusted. One that is missing is reported by `_make_contexts`."""
        files = (self._authority, self._revocations)
        return b"\0".join(file.read_bytes() for file in files if file is not None and file.is_file())

    def _make_contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        for file, what in (
            (self._authority, "the authority's certificate (security.authority)"),
            (self._certificate, f"the certificate of {self.me} (security.certificates)"),
            (self._key, f"the key of {self.me} (security.certificates)"),
        ):
            if not file.is_file():
                raise UsageError(
                    f"{file} does not exist; expected {what}; `amcast certs` makes it;"
                    ' security.mode = "plain" needs none'
                )
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            self._load_files(context)
        # A session ticket would let a connection resume without a certificate.
        server.num_tickets = 0
        self._verify_own_certificate(server)
        return server, client

    def _load_files(self, context: ssl.SSLContext) -> None:
        try:
            context.load_verify_locations(self._authority)
        except (ssl.SSLError, OSError) as error:
            raise UsageError(f"{self._authority}: {describe_error(error)}; expected a PEM certificate") from None
        if self._revocations is not None:
            try:
                context.load_verify_locations(self._revocations)
            except (ssl.SSLError, OSError) as error:
                raise UsageError(
                    f"{self._revocations}: {describe_error(error)}; expected a PEM revocation list of the authority"
                    " (security.revocations)"
                ) from None
            context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as error:
            raise UsageError(
                f"{self._certificate}: {describe_error(error)}; expected a PEM certificate with its key, without a"
                f" password, in {self._key.name}"
            ) from None

    def _verify_own_certificate(self, context: ssl.SSLContext) -> None:
        """Shakes hands with itself in memory, so that a certificate that is not accepted or names another owner is
        reported at start and not at the first connection."""
        there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
        # A client's certificate is not valid for a server; a context that verifies nothing accepts it here.
        server = context.wrap_bio(there, back, server_side=True)
        client = self._context_without_purpose().wrap_bio(back, there)
        try:
            for _ in range(HANDSHAKE_ROUNDS):
                _advance_handshake(client)
                _advance_handshake(server)
            owner = parse_subject(server.getpeercert())
        except (ssl.SSLError, RefusedError) as error:
            raise UsageError(f"{self._certificate}: {describe_error(error)}") from None
        if owner != self.me:
            raise UsageError(
                f"{self._certificate} names {owner} of cluster {owner.cluster!r};"
                f" expected {self.me} of {self.me.cluster!r}"
            )

    def _context_without_purpose(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(self._certificate, self._key, password=_no_password)
        return context


def _advance_handshake(end: ssl.SSLObject) -> None:
    """Advances a handshake as far as the received bytes allow."""
    with contextlib.suppress(ssl.SSLWantReadError):
        end.do_handshake()


def parse_subject(certificate: dict[str, Any] | None) -> Subject:
    """The owner that a peer's verified certificate names."""
    if not certificate:
        raise RefusedError("it showed no certificate")
    return Subject.parse([value for kind, value in certificate.get("subjectAltName", ()) if kind == "URI"])


def seconds_valid(certificate: dict[str, Any] | None) -> float | None:
    """How long a peer's verified certificate is still valid; None if it does not say."""
    expires = (certificate or {}).get("notAfter")
    return None if expires is None else ssl.cert_time_to_seconds(expires) - time.time()


def describe_error(error: BaseException) -> str:
    """The reason of a TLS failure, in a few words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if isinstance(error, OSError):
        return error.strerror or str(error) or type(error).__name__
    return str(error) or type(error).__name__


def _no_password() -> str:
    """Keeps `ssl` from prompting on the terminal."""
    return ""
