"""Admission of one node to a run: gets this node admitted, and serves the requests of others.

Must NOT decide which node is admitted (protocols/peer/certificates.py), nor be imported before the
daemon listens, since its own imports are slow.
"""

import asyncio
from collections.abc import Callable
from functools import partial
from pathlib import Path

from lowcomm.config.schema import NodeConfig
from lowcomm.startup.join_tokens import invite
from peers.connections import Mesh
from peers.security import (
    ROOT_KEY,
    TRUSTED,
    Admission,
    AdmissionShell,
    Key,
    KeySignatures,
    OwnKey,
    TrustStore,
    ask,
    check_format,
    is_signed_by,
    key_of,
    new_token,
    proof_of,
    untimely,
)
from protocols.interface import AtTheGate, Event
from protocols.links import Identity
from protocols.messages import Admit, TokenSpent
from protocols.state import Token, fingerprint
from protocols.types import NO_SIGNATURES, PROTOCOL_VERSION, ConfigError, PeerId, RefusedError

FOUNDER_HOURS = 24.0 * 366 * 10
"""Hours for which the founder's own token is valid: no other node ever gets it."""


class NodeAdmission:
    """The certificates of one node. Call `found` on a founder, then `enter`, `do`, `close`. In an
    unencrypted run (node.insecure) there are no certificates."""

    def __init__(
        self,
        directory: Path,
        node: NodeConfig,
        *,
        token: Token | None,
        contact: str,
        note: Callable[[str, str], None],
        witness: bool = False,
    ) -> None:
        """`directory`: the node's own, which this process has locked; `token`: the token to join
        with, None on a founder; `contact`: the address of a peer of the run, if there is no token;
        `note` is called with (topic, text) if the admission has to wait. Raises ConfigError if the
        directory has an earlier format."""
        self.entered = False
        """This node can communicate with other peers."""
        self.root = ""
        """Public half of the run's root key, 64 hex digits, once `found` was called; "": not
        encrypted."""
        self.own: TokenSpent | None = None
        """The founder's own admission, for its log."""
        self.signatures = NO_SIGNATURES if node.insecure else KeySignatures(directory)
        """Those of this node's key, for its core."""
        check_format(directory)
        self._directory = directory
        self._insecure = node.insecure
        self._token = token
        self._contact = contact
        self._note = note
        self._witness = witness
        self._shell: AdmissionShell | None = None
        self._asking: asyncio.Task[None] | None = None

    def found(self, me: Identity, run_directory: Path | None) -> None:
        """Found the run of the root key that `lowcomm init` made in `run_directory`; if there is
        none, make one here and print how others get a token. Raises ConfigError."""
        if self._insecure:
            invite(self._directory)
            return
        opened = Key.load(run_directory / ROOT_KEY) if run_directory is not None else None
        made = opened or Key.load(self._directory / ROOT_KEY) or Key.make()
        try:
            if opened is None:
                made.save(self._directory / ROOT_KEY)
            own = OwnKey(self._directory)
            own.store_certificate(made.certificate(me.peer, own.key.public))
        except (OSError, ValueError) as error:
            raise ConfigError(f"no certificate can be made in {self._directory}: {error}") from None
        certificate = own.certificate(me.peer)
        token = new_token(made, root=made.public, uses=1, hours=FOUNDER_HOURS)
        proof = proof_of(token, own.key.public)
        self.own = TokenSpent(
            token.terms, me.peer, own.key.hex, certificate, token.signature, proof
        )
        self.root = made.hex
        self._store(me.peer, by=self.own)
        if opened is None:
            invite(self._directory)

    async def enter(self, mesh: Mesh, me: Identity, feed: Callable[[Event], None]) -> str:
        """Get this node admitted if it is not, and give the mesh its TLS contexts. Call this before
        the mesh listens or dials. Returns the address of the peer that admitted this node, or the
        contact.

        `feed` takes the events for the core. Raises ConfigError and RefusedError.
        """
        if self._insecure:
            self.entered = True
            return self._contact
        store, here = TrustStore.load(self._directory), ""
        self._check_run(store)
        own = OwnKey(self._directory)
        if store.peer != me.peer:
            here = await self._get_in(store, own, me.peer)
        elif self._token is not None:  # Other peers may be in since this node was there last.
            learns = self._learn(mesh, store, own, me.peer)
            self._asking = asyncio.create_task(learns, name="admission")
        own.certificate(me.peer)  # Raises if it or its key was replaced.
        mesh.secure(store.open())
        if here:
            mesh.connect(here, peer="")  # The first peer that the core dials may be gone.
        self._shell, self.entered = AdmissionShell(store, mesh, feed, note=self._note), True
        return here or self._contact

    def do(self, command: AtTheGate) -> None:
        """Do a command of the core about certificates."""
        assert self._shell is not None, "no command comes before `enter`"
        self._shell.do(command)

    async def close(self) -> None:
        """Stop asking, and wait until all that was learned is on the disk. Idempotent."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])
        if self._shell is not None:
            await self._shell.close()

    def _check_run(self, store: TrustStore) -> None:
        """Raise RefusedError if this directory is of another run than the token."""
        token = self._token
        if store.root and token is not None and token.root.hex() != store.root:
            raise RefusedError(
                f"{self._directory} holds another run than the token's: give this node a directory "
                "of its own (--set node.directory=PATH)"
            )

    async def _get_in(self, store: TrustStore, own: OwnKey, peer: PeerId) -> str:
        """Ask for admission, and remember it. Returns the address of the peer that gave it. Raises
        RefusedError."""
        admit, admission = await self._ask(store, own, peer)
        root, token = store.root, self._token
        if token is None:
            store.forget()  # Those of the other branch are in its log.
        else:
            root = token.root.hex()
        signatures = (admit.certificate, admit.signature, admit.proof)
        by = TokenSpent(admit.terms, peer, own.key.hex, *signatures)
        store.admitted_as(peer, root=root, by=by)
        store.add(x for x in admission.certificates if not untimely(x))
        store.write(store.content())
        return admission.address

    async def _learn(self, mesh: Mesh, store: TrustStore, own: OwnKey, peer: PeerId) -> None:
        """Ask the nodes of the token for the voters' certificates, and connect with the one that
        answers. This node is admitted, so that spends no use; it tries to get in meanwhile with the
        certificates and addresses that it has."""
        try:
            _, admission = await self._ask(store, own, peer)
        except RefusedError as error:
            self._note("admission", str(error))
        else:
            store.add(x for x in admission.certificates if not untimely(x))
            mesh.connect(admission.address, peer="")

    async def _ask(self, store: TrustStore, own: OwnKey, peer: PeerId) -> tuple[Admit, Admission]:
        """Ask for admission. Raises RefusedError."""
        token, key = self._token, own.key
        if token is not None:
            addresses, earlier = token.addresses, PeerId("")
            by = (token.terms, token.signature, proof_of(token, key.public))
        elif store.peer:  # Our earlier peer was admitted: its branch of the log was given up.
            addresses, earlier = (self._contact,), store.peer
            by = (store.terms, store.signature, store.proof)
        else:
            raise RefusedError(
                f"{self._directory} does not show that this node was admitted to a run "
                f"({TRUSTED} is missing): put it back, or join with a token (--join @FILE; "
                "`lowcomm token DIRECTORY` prints one)"
            )
        certificate = own.certificate(peer)
        who = (peer, key.public, certificate, self._witness)
        admit = Admit(PROTOCOL_VERSION, *who, *by, earlier)
        is_ours = partial(_is_of, token) if token is not None else store.trusts
        waits = partial(self._note, "admission")
        return admit, await ask(addresses, admit, is_ours=is_ours, waits=waits)

    def _store(self, peer: PeerId, *, by: TokenSpent) -> None:
        """Write the founder's store. Raises ConfigError."""
        store = TrustStore(self._directory)
        store.admitted_as(peer, root=self.root, by=by)
        try:
            store.write(store.content())
        except OSError as error:
            raise ConfigError(f"{self._directory} cannot be written: {error}") from error


def _is_of(token: Token, certificate: bytes) -> bool:
    """Is this the certificate of a node that the token names?"""
    if token.prints:
        return fingerprint(key_of(certificate)) in token.prints
    return is_signed_by(certificate, token.root)
