"""The commands that steer a run: `lowcomm pause`, `continue`, `kick`, `set`, and `operator`.

Each asks a node of the run that runs on this machine for one act, with a signature if an operator's
key is here. Must NOT import anything slow: the command line imports this module before it listens.
"""

import time
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
    ask_any,
    ask_run,
    print_rows,
    running,
    undecided,
)
from lowcomm.cli.revoke import means
from protocols.types import ConfigError, LowcommError

if TYPE_CHECKING:
    from lowcomm.startup.identity import NodeRecord
    from peers.ipc import PrepareAct

Directory = Annotated[
    Path, typer.Argument(help="The directory of a node that runs on this machine.")
]
OPERATORS = """Make, add, remove and list operators.

Acts and join tokens that an operator's key signs count at every node. The root key is one; each
other one is added by an act that an operator has signed, and stays where it was made.

\b
Examples:
  lowcomm operator new alice.pem
  lowcomm operator add runs/first/gpu1 5f0c...9e
  lowcomm token runs/joined/beta --key alice.pem
  lowcomm operator list runs/first
"""
operator = typer.Typer(no_args_is_help=True)


def pause(directory: Directory, why: Why = "", key: KeyFile = None) -> None:
    """Let no new round begin, until `lowcomm continue`.

    The round under way ends. Then the ranks make the inner steps of one more round, and wait. A
    per-step method stops at once. Nodes may join, leave and be started again meanwhile. A pause is
    an entry of the run's log: it outlives leaders, restarts and rollbacks.

    If the run's root key is here, or --key names an operator's, it signs the act, and any node may
    hand it to the run. Without a key DIRECTORY must be of a node that votes, and run.steering
    "voters". The same holds for continue, kick and set.

    \b
    Examples:
      lowcomm pause runs/first/gpu1 --why "the power goes off at noon"
      lowcomm pause runs/joined/beta --key /media/safe/root-key.pem
    """
    print(_steer(directory, "pause", why=why, key=key))  # noqa: T201


def go_on(directory: Directory, why: Why = "", key: KeyFile = None) -> None:
    """Let a paused run go on.

    \b
    Examples:
      lowcomm continue runs/first/gpu1
    """
    print(_steer(directory, "continue", why=why, key=key))  # noqa: T201


def kick(
    directory: Directory,
    peer: Annotated[str, typer.Argument(help="The node to remove, by name or id.")],
    why: Why = "",
    force: Force = False,
    key: KeyFile = None,
) -> None:
    """Remove a node until it is started again.

    The run ends the node's vote, then its membership, and the node's daemon ends with status 3.
    `lowcomm resume` on its machine brings it back: to shut it out for good, revoke it. If no
    majority of the remaining voters can be reached, the run refuses; --force logs it nevertheless.

    \b
    Examples:
      lowcomm kick runs/first/gpu1 gamma --why "its line is too slow"
      lowcomm kick runs/first/gpu1 gamma.1f0c22aa
    """
    print(_steer(directory, "kick", peer, why=why, force=force, key=key))  # noqa: T201


def set_value(
    directory: Directory,
    setting: Annotated[str, typer.Argument(metavar="KEY=VALUE", help="run.KEY=VALUE")],
    why: Why = "",
    key: KeyFile = None,
) -> None:
    """Change a key of the run for all nodes.

    All nodes use the new value from the same entry of the run's log on. These can change:
    run.outer_steps (the learning rate keeps the schedule of the first value), run.peers_min before
    rounds begin, and of run.protocol quorum, round_grace_s, reduction_timeout_s, transfer_timeout_s
    and reconnect_grace_s. Files of nodes keep the first value, and so do those of later joiners.

    \b
    Examples:
      lowcomm set runs/first/gpu1 run.outer_steps=200
      lowcomm set runs/first/gpu1 run.protocol.round_grace_s=60 --why "slow"
    """
    name, equals, value = setting.partition("=")
    if not equals:
        raise ConfigError(f"{setting}: write it as run.key=value, for example run.outer_steps=200")
    name, value = name.strip(), value.strip()
    print(_steer(directory, "set", name, value, why=why, key=key))  # noqa: T201


@operator.command("new")
def operator_new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The file to make.")],
) -> None:
    """Make a key for one more operator, and print its public half.

    The file stays where it was made. An operator adds the public half to the run.

    \b
    Examples:
      lowcomm operator new alice.pem
    """
    from peers.security import Key

    if file.exists():
        raise ConfigError(f"{file} exists already: give another name")
    key = Key.make()
    try:
        key.save(file)
    except OSError as error:
        raise ConfigError(f"cannot write {file}: {error.strerror}") from error
    print(key.hex)  # noqa: T201


@operator.command("add")
def operator_add(
    directory: Directory,
    public: Annotated[
        str, typer.Argument(metavar="KEY", help="The public key, as `lowcomm operator new` prints.")
    ],
    why: Why = "",
    key: KeyFile = None,
) -> None:
    """Add an operator: acts and tokens of this key count from now on, as those of the root key.

    The root key or another operator's has to be here, or in --key FILE.

    \b
    Examples:
      lowcomm operator add runs/first/gpu1 5f0c...9e --why "alice"
    """
    print(_steer(directory, "add operator", public, why=why, key=key))  # noqa: T201


@operator.command("remove")
def operator_remove(
    directory: Directory,
    public: Annotated[
        str, typer.Argument(metavar="KEY", help="The public key, or its first 8 digits or more.")
    ],
    why: Why = "",
    key: KeyFile = None,
) -> None:
    """Remove an operator: no later act of this key counts, and no token of it that is not used.

    Its earlier acts stay valid, and the nodes that came by its tokens stay: `lowcomm revoke --token
    NUMBER --nodes` shuts them out.

    \b
    Examples:
      lowcomm operator remove runs/first/gpu1 5f0c22aa --why "the key leaked"
    """
    found = [known for known in _keys(running(directory)) if known.startswith(public)]
    of = found[0] if len(found) == 1 and len(public) >= 8 else public
    print(_steer(directory, "remove operator", of, why=why, key=key))  # noqa: T201


@operator.command("list")
def operator_list(
    directory: Annotated[Path, typer.Argument(help="The directory of a run or one of its nodes.")],
) -> None:
    """List the operators of a run. `lowcomm audit` tells when each was added.

    \b
    Examples:
      lowcomm operator list runs/first
    """
    keys = ask_any(directory, _question(), "keys")
    rows = [(str(known), "added" if place else "root key") for place, known in enumerate(keys)]
    print_rows(("key", "kind"), rows, empty="the run is not encrypted: it has no operators")


def _keys(record: "NodeRecord") -> list[str]:
    return cast(list[str], ask(record, _question(), timeout_s=WAIT_S / 4)["keys"])


def _question() -> "PrepareAct":
    """Its answer names the operators' keys, whatever act it is about."""
    from peers.ipc import PrepareAct

    return PrepareAct(what="pause", subject="", value="")


def _steer(
    directory: Path,
    what: str,
    subject: str = "",
    value: str = "",
    *,
    why: str,
    key: Path | None,
    force: bool = False,
) -> str:
    """Ask for the act and wait; return the confirmation.

    Raises ConfigError if it is refused, and LowcommError if the run could not decide in time.
    """
    from dataclasses import replace

    from lowcomm.daemon.acts import reason
    from peers.ipc import PrepareAct, Steer
    from protocols.messages import Steered
    from protocols.types import PeerId

    record, signer = running(directory), Signer.of(directory, key)
    asked = PrepareAct(what=what, subject=subject, value=value)
    found = ask(record, asked, timeout_s=WAIT_S / 4)
    keys = cast(list[str], found["keys"])
    if what == "kick" and not means(subject, str(found["subject"]), token=False):
        raise LowcommError(f"{record.name} takes {subject} for {found['subject']}: give its id")
    entry = Steered(
        what=what,
        subject=str(found["subject"]) if what == "kick" else subject,
        value=str(found["value"]),
        number=int(found["number"]),
        lineage=int(found["lineage"], 16),
        by=PeerId(record.peer),
        why=reason(why),
        unix_s=int(time.time()),
    )
    signature = ""
    if signer.counts(keys):
        entry = replace(entry, key=signer.named(keys))
        signature = signer.signature(keys[0], entry)

    def question(again: bool) -> Steer:
        return Steer(
            what=what,
            subject=entry.subject,
            value=entry.value,
            number=entry.number,
            lineage=str(found["lineage"]),
            why=entry.why,
            force=force,
            again=again,
            signature=signature,
            key=entry.key,
            unix_s=entry.unix_s,
        )

    answer = ask_run(record, question)
    if answer is None:
        raise undecided("the act", force=force)
    return str(answer["done"])
