"""Gives and checks the signatures of one peer about elections, with the keys that the log has.

Must NOT decide what has to be proved (raft/mandate.py).
"""

from protocols.messages.log_entries import LogEntry, Mandate, Run, TokenSpent, Voter
from protocols.raft.log import Log, voters_after
from protocols.raft.mandate import Electorate, Statement, extended
from protocols.state.log_applier import electorate_of, run_of
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId


class LoggedProofs:
    """The signatures of one peer. Proofs are required once its log says that the run is
    encrypted."""

    def __init__(self, run_state: RunState) -> None:
        self._log = Log()
        self._run_state, self._signatures = run_state, run_state.signatures

    def read(self, log: Log) -> None:
        self._log = log

    @property
    def required(self) -> bool:
        run = self._run
        return run is not None and bool(run.root)

    def sign(self, what: Statement) -> bytes:
        run = self._run
        return self._signatures.sign(what.content(run.run)) if run is not None and run.root else b""

    def is_signed(self, peer: PeerId, what: Statement, signature: bytes) -> bool:
        run = self._run
        if run is None or not run.root:
            return True
        return self._signatures.verify(self._key_of(peer), what.content(run.run), signature)

    def mandate(self) -> Mandate:
        made, voters = self._run_state.mandate, self._run_state.voters
        for entry in self._unapplied():
            after = voters_after(voters, entry.body)
            if not isinstance(entry.body, Run):
                made = extended(made, entry, changes=after != voters)
            voters = after
        return made

    def proves(self, mandate: Mandate, leader: PeerId, term: int) -> bool:
        known = self._electorate()
        if known is None:
            return True  # This peer knows nothing of the run yet, and reads the log of its contact.
        found = known.follow(mandate, verify=self._signatures.verify)
        return found and (known.term, known.leader) == (term, leader)

    @property
    def _run(self) -> Run | None:
        return run_of(self._run_state, self._log)

    def _electorate(self) -> Electorate | None:
        """The voters as of the last applied entry: no leader can take it back. Of a log without
        applied entries, the founder."""
        run, run_state = self._run, self._run_state
        if run is None:
            return None
        if run_state.run is None:
            return Electorate(run.run, 1, (run.founder,), {run.founder: self._key_of(run.founder)})
        return electorate_of(run, run_state)

    def _key_of(self, peer: PeerId) -> str:
        """The public key of a peer, 64 hex digits; "" if neither state nor log has it."""
        if known := self._run_state.key_of(peer):
            return known
        for entry in self._unapplied():
            match entry.body:
                case TokenSpent(peer=admitted, key=key) | Voter(peer=admitted, key=key):
                    if admitted == peer and key:
                        return key
                case _:
                    pass
        return ""

    def _unapplied(self) -> list[LogEntry]:
        return self._log.since(self._run_state.index + 1)
