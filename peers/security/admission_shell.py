"""The shell of admission: does with real keys what protocols/peer/certificates.py decides.

It checks what the core cannot: signatures, certificates, and the time. Must NOT decide how often a
token may be spent, nor which issuer counts (the log).
"""

import asyncio
from collections.abc import Callable

from peers.connections.clock_skew import token_ended
from peers.connections.mesh import Mesh
from peers.security.certificates import untimely
from peers.security.proofs import admission_fault
from peers.security.trust_store import TrustStore
from protocols.interface import commands as c
from protocols.interface import events as v
from protocols.messages import peer as m
from protocols.state import ANOTHER
from protocols.wire import one_line


class AdmissionShell:
    """The shell of an admitted node: `do` commands of the core, then `close`."""

    def __init__(
        self,
        store: TrustStore,
        mesh: Mesh,
        feed: Callable[[v.Event], None],
        *,
        note: Callable[[str, str], None],
    ) -> None:
        """`store`: opened; `feed` gives the core an event; `note` is called with (topic, text)."""
        self._store = store
        self._mesh = mesh
        self._feed = feed
        self._note = note
        self._faults: set[tuple[str, str]] = set()
        """Refused admissions that were noted."""
        self._unwritten = b""
        """Content of the store that has to be written; b"": none."""
        self._writing: asyncio.Task[None] | None = None
        feed(v.Secured())

    def do(self, command: c.AtTheGate) -> None:
        """Do a command of the core, inside a running loop."""
        match command:
            case c.CheckProof():
                self._feed(_checked(command))
            case c.AdmissionAnswer(number=number, certificates=certificates, why=why, final=final):
                self._mesh.answer(
                    number, m.NotAdmitted(why, final) if why else m.Admitted(certificates)
                )
            case c.Trust():
                faults = self._store.follow(command)
                for fault in faults.items() - self._faults:
                    self._note("admission", f"{fault[0]} is not trusted: {fault[1]}")
                self._faults.update(faults.items())
                self._unwritten = self._store.content()
                if self._writing is None:
                    self._writing = asyncio.get_running_loop().create_task(self._write())

    async def close(self) -> None:
        """Wait until the store is written. Idempotent."""
        if self._writing is not None:
            await self._writing

    async def _write(self) -> None:
        """Write the store as long as it changes; a file system may take its time."""
        while content := self._unwritten:
            self._unwritten = b""
            try:
                await asyncio.to_thread(self._store.write, content)
            except OSError as error:
                self._note("disk", f"the certificates of the run cannot be written: {error}")
        self._writing = None


def _checked(check: c.CheckProof) -> v.Proved | v.NotProved:
    entry, asker = check.entry, (check.asker, check.number)
    why = admission_fault(entry, root=check.root, issuer_key=check.issuer_key)
    if not why and (late := untimely(entry.certificate)):
        why = f"the certificate of this node does not count: {late}"
    if not (why or entry.renews) and (ended := token_ended(entry.terms.expires)):
        why = f"{ended}: {ANOTHER}"
    return v.NotProved(*asker, one_line(why), final=True) if why else v.Proved(*asker, entry)
