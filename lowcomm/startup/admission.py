"""Admission of one node to a run: gets its certificate, and issues certificates for others.

Must NOT decide which node is admitted (protocols/peer/certificates.py), nor be imported before the
daemon listens, since its own imports are slow.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from lowcomm.config.schema import NodeConfig
from lowcomm.startup.join_tokens import invite
from peers.connections import Mesh
from peers.security import (
    Authority,
    CertificateIssuer,
    OwnKey,
    ask,
    contexts,
    genuine,
    public_of,
    root_of,
    untimely,
)
from protocols.interface import AtTheGate, Event
from protocols.links import Identity
from protocols.messages import Admit
from protocols.state import Token, encode_token
from protocols.types import PROTOCOL_VERSION, ConfigError, PeerId, RefusedError


class NodeAdmission:
    """The certificates of one node. Call `found` on a founder, then `enter`, then `do`. In an
    unencrypted run (node.insecure) there are no certificates."""

    def __init__(
        self,
        directory: Path,
        node: NodeConfig,
        *,
        token: Token | None,
        contact: str,
        note: Callable[[str, str], None],
    ) -> None:
        """`directory`: the node's own, which this process has locked; `token`: the token to join
        with, None on a founder; `contact`: the address of a peer of the run, if there is no token;
        `note` is called with (topic, text) if the admission has to wait."""
        self.entered = False
        """This node can communicate with other peers."""
        self._directory = directory
        self._insecure = node.insecure
        self._token = token
        self._contact = contact
        self._note = note
        self._gate: CertificateIssuer | None = None

    def found(self, me: Identity, run_directory: Path | None) -> None:
        """Found the run under the authority that `lowcomm init` made in `run_directory`; if there
        is none, make a new one and print how others get a token. Raises ConfigError."""
        if self._insecure:
            invite(self._directory)
            return
        known = Authority.load(run_directory) if run_directory is not None else None
        authority = known or Authority.make()
        try:
            authority.save(self._directory)
            own = OwnKey(self._directory)
            own.keep(authority.sign(me.peer, own.public), authority.certificate_bytes())
        except (OSError, ValueError) as error:
            raise ConfigError(f"no certificate can be made in {self._directory}: {error}") from None
        if known is None:
            invite(self._directory)

    async def enter(self, mesh: Mesh, me: Identity, feed: Callable[[Event], None]) -> None:
        """Get a certificate if this node has none, and give the mesh its TLS contexts. Call this
        before the mesh listens or dials.

        `feed` takes the events for the core. Raises ConfigError and RefusedError.
        """
        if self._insecure:
            self.entered = True
            return
        self._check_run()
        own, here = OwnKey(self._directory), ""
        if own.certified() != me.peer:
            here = await self._ask(own, me.peer)
        mesh.secure(contexts(self._directory))
        if here:
            mesh.connect(here, peer="")  # The first peer that the core dials may be gone.
        self._gate, self.entered = CertificateIssuer(self._directory, mesh, feed), True

    def token_of(self, word: str) -> Token:
        """Decode and check a token of this run. Raises ConfigError."""
        authority = Authority.load(self._directory)
        if authority is None:
            raise ConfigError(
                "this node has no authority's key to check the token with: ask a node that votes"
            )
        return genuine(authority, word)

    def do(self, command: AtTheGate) -> None:
        """Do a command of the core about certificates. Raises OSError."""
        assert self._gate is not None, "no command comes before `enter`"
        self._gate.do(command)

    def _check_run(self) -> None:
        """Raise RefusedError if this directory has the authority of another run than the token."""
        root, token = root_of(self._directory), self._token
        if root and token is not None and public_of(root) != token.authority:
            raise RefusedError(
                f"{self._directory} holds another run than the token's: give this node a directory "
                "of its own (--set node.directory=PATH)"
            )

    async def _ask(self, own: OwnKey, peer: PeerId) -> str:
        """Ask for a certificate and keep it. Returns the address of the peer that issued it. Raises
        RefusedError."""
        token = self._token
        if token is not None:
            authority, addresses = token.authority, token.addresses
            admit = Admit(PROTOCOL_VERSION, encode_token(token), peer, own.public, b"", b"")
        elif own.certified():  # The certificate of our earlier peer: its branch was given up.
            authority, addresses = public_of(root_of(self._directory)), (self._contact,)
            certificate, proof = own.renewal(peer)
            admit = Admit(PROTOCOL_VERSION, "", peer, own.public, certificate, proof)
        else:
            raise RefusedError(
                f"{self._directory} has no certificate: join the run with a token "
                "(--join @FILE; `lowcomm token DIRECTORY` prints one)"
            )
        waits = partial(self._note, "admission")
        admission = await ask(addresses, admit, authority=authority, waits=waits)
        if not own.is_mine(admission.certificate, peer, authority):
            raise RefusedError(f"the certificate from {admission.address} is not for this node")
        if why := untimely(admission.certificate):
            raise RefusedError(f"the certificate from {admission.address} is not valid: {why}")
        own.keep(admission.certificate, admission.authority)
        return admission.address
