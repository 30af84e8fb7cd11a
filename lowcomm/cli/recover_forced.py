"""`lowcomm recover --force`: one node goes on if a majority of the voters is gone for good.

To the node's log, committed or not, it appends a Restore that names the node as the only voter and
opens a new lineage (protocol.md section 8); `lowcomm resume` then starts the node as usual. A
finished run goes on in the same way, with more outer steps. Must NOT decide which node goes on: a
person does.
"""

from collections.abc import Generator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from lowcomm.checkpoints.checkpoint import CHECKPOINTS, newest_checkpoint, read_cut
from lowcomm.cli.acts_command import Signer
from lowcomm.config.schema import run_from_json
from lowcomm.daemon.acts import operators_of
from lowcomm.daemon.event_writer import fork_fields
from lowcomm.methods import RoundMethod
from lowcomm.reports.event_log import EventLog
from lowcomm.startup import startup
from lowcomm.startup.identity import NodeDirectory, node_directories, read_record
from peers.storage import Wal
from protocols.acts import SET, parsed_setting
from protocols.interface import Persist
from protocols.messages import Kept, Restore, Saved, Steered
from protocols.peer import fork_of
from protocols.state import LogApplier, cannot_act
from protocols.types import ConfigError, LogError, PeerId

OUTER_STEPS = "run.outer_steps"
STOPPED = "leave it running: a node needs no recovery unless other voters are gone for good"


@dataclass(frozen=True, slots=True)
class ForcedRecovery:
    """The planned recovery of one node's directory."""

    directory: Path
    _wal: Wal
    _me: PeerId
    _log_applier: LogApplier
    """The node's whole log, since no other peer can tell which of its entries are committed."""
    _kept: Kept

    def lines(self) -> list[str]:
        """Lines for a person: what happens, and what is lost."""
        run_state, kept, me = self._log_applier.run_state, self._kept, self._me
        names = {
            peer: info.name for peer, info in {**run_state.seats, **run_state.witnesses}.items()
        }
        others = [names.get(peer, peer) for peer in run_state.voters if peer != me]
        steps, tokens = run_state.inner_step - kept.inner_step, run_state.tokens - kept.tokens
        round_, unit = kept.versions[0].round, "step" if run_state.stepwise else "round"
        rounds = run_state.committed(0) - round_
        return [
            f"{names.get(me, me)} goes on alone from its checkpoint of {unit} {round_} "
            f"(inner step {kept.inner_step:,}, {kept.tokens:,} committed "
            f"{run_state.progress_unit})",
            f"no longer voters: {', '.join(others) or 'none'}",
            f"lost: {rounds} committed {unit}s ({steps:,} inner steps, "
            f"{tokens:,} {run_state.progress_unit})"
            if rounds
            else f"lost: no committed {unit} that its log knows of",
            "also lost: all that other nodes committed and its log does not hold; a node that "
            "comes back gives up its own state and joins again",
        ]

    def write(self) -> None:
        """Append the fork to the log and fsync it. Raises WalError."""
        fork = fork_of(self._log_applier.run_state, self._me, self._kept, lonely=False)
        seize(self.directory, self._wal, self._me, self._log_applier, fork)

    def prolong(self, outer_steps: str, *, unix_s: int) -> None:
        """Append a fork at the run's end to the log, and the act that sets `run.outer_steps`; fsync
        both. Raises ConfigError if the run is not finished or cannot go on, WalError."""
        me, run_state, raft = self._me, self._log_applier.run_state, self._log_applier.raft
        run = run_state.run
        if run is None or not run_state.is_over:
            raise ConfigError(
                f"the run of {self.directory} is not finished: start it with `lowcomm resume "
                f"{self.directory}`, then `lowcomm set {self.directory} run.outer_steps=N`"
            )
        if run_state.stepwise:
            raise ConfigError(
                "run.outer_steps cannot change with a per-step method: begin a new run from this "
                f"one's parameters, run.model.init_from = {str(self.directory)!r}"
            )
        steps = run_state.committed(0)
        for version in self._kept.versions:
            last = run_state.committed(version.fragment)
            if version.round < last:
                why = f"its checkpoint is of round {version.round}, and the last is {last}"
                raise cannot(self.directory, why)
        method = run_from_json(run.run_json).method
        if isinstance(method, RoundMethod) and method.qsr_alpha:
            raise ConfigError("run.outer_steps cannot change with run.method.qsr_alpha")
        value = parsed_setting(OUTER_STEPS, outer_steps)
        if int(value) <= steps:
            raise ConfigError(f"the run has {steps} outer steps already: set more than {value}")
        signer = Signer.of(self.directory, None)
        if not (run.voters_steer or signer.counts(operators_of(run_state))):
            raise ConfigError(
                'run.steering is "operators": go on where the key of an operator of the run is'
            )
        self.write()
        number, lineage = run_state.orders.number + 1, run_state.lineage
        act = Steered(SET, OUTER_STEPS, value, number, lineage, me, "", unix_s=unix_s)
        keys = operators_of(run_state)
        if signer.counts(keys):
            act = replace(act, key=signer.named(keys))
            act = replace(act, signature=bytes.fromhex(signer.signature(keys[0], act)))
        why = cannot_act(run_state, act)
        assert not why, f"checked above, before the log changed: {why}"
        raft.append(act)
        write_changes(self._wal, self._log_applier)


def seize(directory: Path, wal: Wal, me: PeerId, log_applier: LogApplier, fork: Restore) -> None:
    """Append the fork to the log of this node, fsync it, and write an event. Raises WalError.

    The log then begins with a snapshot after the fork. A reader that knew the voters before it
    could not check it: a majority of them is gone, and did not sign it.
    """
    raft = log_applier.raft
    raft.seize(0.0, fork, after=raft.log.last_index)
    startup.apply_all(log_applier)
    snapshot = log_applier.snapshot()
    raft.compact(snapshot, to=snapshot.index)
    write_changes(wal, log_applier)
    name = log_applier.run_state.seats[me].name
    with closing(EventLog(directory, peer=me, name=name)) as event_log:
        event_log.record("forked", **fork_fields(fork, lambda _: name))


def write_changes(wal: Wal, log_applier: LogApplier) -> None:
    """Write and fsync what has changed in a log. Raises WalError."""
    for command in log_applier.raft.take_commands(0.0):
        if isinstance(command, Persist):
            wal.write(command)


@contextmanager
def recovery(directory: Path) -> Generator[ForcedRecovery]:
    """The recovery of one node's directory, or of the best one in a run's. The directory stays
    locked while the context lasts.

    Raises ConfigError if the node runs, or has nothing to go on from.
    """
    chosen = best_of(directory)
    with closing(NodeDirectory(chosen, remedy=STOPPED)) as node:
        wal, saved = startup.open_log(node.path)
        with closing(wal):
            record, (kept, _) = node.read(), startup.kept(node.path)
            if record is None or saved is None:
                raise cannot(chosen, "it has no log of a run")
            if kept is None:
                raise cannot(chosen, "it has no complete checkpoint")
            me = PeerId(record.peer)
            log_applier = read_log_of(me, saved, chosen)
            if me not in log_applier.run_state.seats:
                raise cannot(chosen, "it never trained in the run")
            if not log_applier.run_state.is_kept(kept.lineage, kept.versions):
                raise cannot(chosen, "its newest checkpoint is of a branch that the run has left")
            yield ForcedRecovery(chosen, wal, me, log_applier, kept)


def best_of(directory: Path) -> Path:
    """The given node's directory; in a run's directory, that of the node with the
    newest checkpoint of most committed tokens. Raises ConfigError."""
    found = node_directories(directory)
    return max(found, key=_tokens) if len(found) > 1 else found[0]


def cannot(directory: Path, why: str) -> ConfigError:
    return ConfigError(f"cannot recover from {directory}: {why}; give another node's directory")


def _tokens(directory: Path) -> int:
    """Committed tokens in the newest checkpoint of a node; -1 if the node cannot be recovered from
    one."""
    record = read_record(directory)
    path, _ = newest_checkpoint(directory / CHECKPOINTS)
    if record is None or record.witness or path is None:
        return -1
    return read_cut(path).fragments[0].tokens


def read_log_of(me: PeerId, saved: Saved, directory: Path) -> LogApplier:
    """Apply the whole log of a node. Raises ConfigError."""
    try:
        return startup.whole_log(me, saved)
    except LogError as error:
        raise cannot(directory, str(error)) from error
