"""The command `lowcomm revoke`: revokes a peer's certificate, or a join token.

It asks any node of the run that runs on this machine, with a signature if an operator's key is
here. Must NOT import anything slow: the command line imports this module before it listens.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lowcomm.cli.acts_command import (
    WAIT_S,
    Force,
    KeyFile,
    Signer,
    Why,
    ask,
    ask_run,
    running,
    undecided,
)
from lowcomm.cli.token_source import take_token
from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord

PREFIX = "lc2-"
"""The beginning of a token (protocols/state/tokens.py)."""


def revoke(
    directory: Annotated[
        Path, typer.Argument(help="The directory of a node that runs on this machine.")
    ],
    what: Annotated[
        str,
        typer.Argument(
            metavar="[PEER|@FILE]",
            help="The node to shut out, by name or id; or a token in a file.",
        ),
    ] = "",
    token: Annotated[
        str,
        typer.Option(
            "--token",
            metavar="NUMBER",
            help="Revoke the token of this number, of `lowcomm token list DIRECTORY`.",
        ),
    ] = "",
    nodes: Annotated[
        bool, typer.Option("--nodes", help="With a token, shut out the nodes that came by it too.")
    ] = False,
    why: Why = "",
    force: Force = False,
    key: KeyFile = None,
) -> None:
    """Revoke a node's certificate or a join token.

    If the run's root key is here, or --key names an operator's, it signs the revocation, and any
    node may hand it to the run. Without a key DIRECTORY must be of a node that votes, and
    run.revocations "voters".

    No peer communicates with a revoked node any more, and its own tokens admit no node. A revoked
    token admits no node; nodes that it admitted before stay, unless --nodes is given. A revocation
    stays in the run's log, even if the run is rolled back.

    Before a node is revoked, the run ends its vote. If no majority of the remaining voters can be
    reached, the run refuses and changes nothing, since it could decide nothing afterwards. --force
    logs the revocation nevertheless: it takes effect once a majority of those voters is connected.
    If they are gone for good, stop the remaining nodes, run `lowcomm recover --force` on the best
    of them, and start it with `lowcomm resume`.

    \b
    Examples:
      lowcomm revoke runs/demo/alpha gamma
      lowcomm revoke runs/demo/alpha gamma.1f0c22aa --why "the laptop was stolen"
      lowcomm revoke runs/demo/alpha @token --why "it was in a public chat"
      lowcomm revoke runs/demo/alpha --token 1f0c22aa --nodes
      lowcomm revoke runs/demo/alpha gamma --force
      lowcomm revoke runs/joined/beta gamma --key /media/safe/root-key.pem
    """
    if bool(what) == bool(token):
        raise ConfigError("say what to revoke: a node, @FILE with a token, or --token NUMBER")
    subject = token or (take_token(what) if what.startswith("@") else what)
    is_token = bool(token) or what.startswith(("@", PREFIX))
    if nodes and not is_token:
        raise ConfigError("--nodes is about a token: give @FILE or --token NUMBER too")
    record = running(directory)
    asker = Asker(record, why, force, Signer.of(directory, key))
    done, came = asker.revoke(subject, token=is_token)
    if not nodes:
        print(done)  # noqa: T201
        return
    print("the token admits no more nodes")  # noqa: T201
    # This node can ask for the others only as long as it is in.
    for peer in sorted(came, key=lambda peer: peer == record.peer):
        print(asker.revoke(peer, token=False)[0])  # noqa: T201


@dataclass(frozen=True, slots=True)
class Asker:
    """Asks one node for revocations."""

    record: "NodeRecord"
    why: str
    force: bool
    signer: Signer

    def revoke(self, what: str, *, token: bool) -> tuple[str, Sequence[str]]:
        """Ask for the revocation and wait; return the confirmation, and the nodes that came by a
        token.

        Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
        """
        from lowcomm.daemon.acts import reason
        from peers.ipc import Revoke

        why, subject, unix_s = reason(self.why), what, int(time.time())
        signature, key = "", ""
        if self.signer.key is not None:
            subject, signature, key = self._signed(what, why, unix_s, token=token)

        def question(again: bool) -> Revoke:
            return Revoke(
                what=subject,
                token=token,
                why=why,
                force=self.force,
                again=again,
                signature=signature,
                key=key,
                unix_s=unix_s,
            )

        answer = ask_run(self.record, question)
        if answer is None:
            raise undecided("the revocation", force=self.force)
        return str(answer["done"]), cast(list[str], answer["nodes"])

    def _signed(self, what: str, why: str, unix_s: int, *, token: bool) -> tuple[str, str, str]:
        """(the subject as the log names it, the signature in hex digits, the signer's key as the
        log names it). No signature if the key is not of this run."""
        from peers.ipc import FindSubject
        from protocols.messages import Revoked, TokenRevoked
        from protocols.types import PeerId

        found = ask(self.record, FindSubject(what=what, token=token), timeout_s=WAIT_S / 4)
        subject, keys = str(found["subject"]), cast(list[str], found["keys"])
        if not self.signer.counts(keys):
            return what, "", ""
        if not means(what, subject, token=token):
            raise LowcommError(f"{self.record.name} takes {what} for {subject}: give the whole id")
        rest = PeerId(self.record.peer), why, b"", self.signer.named(keys), unix_s
        entry = TokenRevoked(subject, *rest) if token else Revoked(PeerId(subject), *rest)
        return subject, self.signer.signature(keys[0], entry), entry.key


def means(what: str, subject: str, *, token: bool) -> bool:
    """May a person that typed `what` mean this subject? The node that looked it up must not choose
    another one for the operator to sign."""
    from protocols.state import decode_token

    if not token:
        return what in (subject, subject.rpartition(".")[0])
    return subject.startswith(decode_token(what).number if what.startswith(PREFIX) else what)
