"""The command `lowcomm revoke`: revokes a peer's certificate, or a join token.

It asks any node of the run that runs on this machine, with a signature if the run's root key is
here. Must NOT import anything slow: the command line imports this module before it listens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from lowcomm.cli.acts_command import WAIT_S, ask, ask_run, running
from lowcomm.cli.token_source import take_token
from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord
    from peers.security import Key

PREFIX = "lc2-"
"""The beginning of a token (protocols/state/tokens.py)."""

Why = Annotated[
    str, typer.Option("--why", help="The reason, shown to all nodes and to the revoked one.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Revoke even if no majority of the remaining voters can be reached."
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--key",
        metavar="FILE",
        help="The run's root key.  [default: root-key.pem in DIRECTORY or above it]",
    ),
]


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

    If the run's root key is here, it signs the revocation, and any node may hand it to the run.
    Without it DIRECTORY must be of a node that votes, and run.revocations "voters".

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
    asker = Asker(record, why, force, _root_key(directory, key), key)
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
    key: "Key | None"
    """The root key, if it is here."""
    key_file: Path | None
    """The file that was given: its key must be of this run. Another one may be of a run that has
    its directory above this node's."""

    def revoke(self, what: str, *, token: bool) -> tuple[str, Sequence[str]]:
        """Ask for the revocation and wait; return the confirmation, and the nodes that came by a
        token.

        Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
        """
        from lowcomm.daemon.acts import reason
        from peers.ipc import Revoke

        why = reason(self.why)
        signed = self._signed(what, why, token=token) if self.key is not None else None
        subject, signature = signed or (what, "")

        def question(again: bool) -> Revoke:
            return Revoke(
                what=subject,
                token=token,
                why=why,
                force=self.force,
                again=again,
                signature=signature,
            )

        answer = ask_run(self.record, question)
        if answer is not None:
            return str(answer["done"]), cast(list[str], answer["nodes"])
        if self.force:
            raise LowcommError(
                f"the run could not commit the revocation within {WAIT_S:g} s, and decides nothing "
                "else before: it takes effect once a majority of the remaining voters is "
                "connected. If they are gone for good, stop the remaining nodes, run `lowcomm "
                "recover --force DIRECTORY` on one of them, then `lowcomm resume DIRECTORY`"
            )
        raise LowcommError(
            f"the run could not decide within {WAIT_S:g} s, which needs a majority of its voters: "
            "it will decide once it has one, if this node keeps running"
        )

    def _signed(self, what: str, why: str, *, token: bool) -> tuple[str, str] | None:
        """(the subject as the log names it, the signature in hex digits); None if the key is not of
        this run."""
        from peers.ipc import FindSubject
        from protocols.messages import Revoked, TokenRevoked
        from protocols.state import revocation_statement
        from protocols.types import PeerId

        assert self.key is not None, "the caller looks"
        found = ask(self.record, FindSubject(what=what, token=token), timeout_s=WAIT_S / 4)
        subject = str(found["subject"])
        if found["root"] != self.key.hex:
            if self.key_file is not None:
                raise ConfigError(f"--key {self.key_file} is the root key of another run")
            return None
        if not means(what, subject, token=token):
            raise LowcommError(f"{self.record.name} takes {what} for {subject}: give the whole id")
        plain = PeerId(self.record.peer), why
        entry = TokenRevoked(subject, *plain) if token else Revoked(PeerId(subject), *plain)
        return subject, self.key.sign(revocation_statement(self.key.hex, entry)).hex()


def means(what: str, subject: str, *, token: bool) -> bool:
    """May a person that typed `what` mean this subject? The node that looked it up must not choose
    another one for the root key to sign."""
    from protocols.state import decode_token

    if not token:
        return what in (subject, subject.rpartition(".")[0])
    return subject.startswith(decode_token(what).number if what.startswith(PREFIX) else what)


def _root_key(directory: Path, given: Path | None) -> "Key | None":
    """The root key in this file; without one, that in the node's directory or the run's. Raises
    ConfigError if there is no such file, or none that can be read."""
    from peers.security import ROOT_KEY, Key

    if given is not None:
        key = Key.load(given)
        if key is None:
            raise ConfigError(f"--key {given} does not exist: give the run's {ROOT_KEY}")
        return key
    places = (directory / ROOT_KEY, directory.absolute().parent / ROOT_KEY)
    return next((key for place in places if (key := Key.load(place)) is not None), None)
