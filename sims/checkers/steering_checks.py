"""An act that steers the run counts once, if an operator signed it or a voter asked for it; and the
run obeys it.

Must NOT know which acts were requested: faults do.
"""

from __future__ import annotations

from collections.abc import Callable

from protocols.acts import CONTINUE, KICK, PAUSE, SET, act_statement
from protocols.messages import log_entries as e
from protocols.raft import Voters, voters_after
from protocols.types import PeerId
from sims.node.toy_model import toy_signature


class SteeringChecks:
    """Checks the acts of one log."""

    def __init__(self, found: Callable[[str], None]) -> None:
        self._found = found
        self._run: e.Run | None = None
        self._voters: Voters = ()
        self._voted: set[PeerId] = set()
        """Peers that ever had a vote."""
        self._number = 0
        self._seen: set[tuple[object, ...]] = set()
        """All acts so far, without their peers."""
        self._paused: e.Steered | None = None
        self._begun: set[int] = set()
        """Fragments that have committed a round since the pause."""
        self._kicked: set[tuple[PeerId, int]] = set()
        self._last_round = 0
        """`run.outer_steps` by the last act."""

    def check_entry(self, lineage: int, entry: e.Entry) -> None:
        """The first peer applies an entry. `lineage`: the present one."""
        self._voters = voters_after(self._voters, entry)
        self._voted.update(self._voters)
        match entry:
            case e.Run():
                self._run, self._last_round = entry, entry.outer_steps
            case e.Steered():
                self._counts(lineage, entry)
                self._take(entry)
            case e.Restore():
                # No round is open in the new lineage, so none may be committed.
                fragments = len(self._run.fragment_elements) if self._run is not None else 0
                self._begun = set(range(fragments))
            case e.Commit(fragment=fragment, round=number):
                if self._paused is not None and fragment in self._begun:
                    self._found(f"round {number} begins in a pause")
                self._begun.add(fragment)
                if number > self._last_round:
                    self._found(f"round {number} is committed, of {self._last_round}")
            case e.View(view=view) if self._run is not None and self._run.commit_every_steps:
                if self._paused is not None:
                    self._found(f"view {view} of a stepwise run begins in a pause")
            case e.Cut() | e.Member() | e.Witness():
                if (entry.info.peer, entry.info.incarnation) in self._kicked:
                    self._found(f"{entry.info.peer} was removed, and is let in again")
            case _:
                pass

    def _take(self, act: e.Steered) -> None:
        self._number = act.number
        if act.what in (PAUSE, CONTINUE):
            self._paused, self._begun = (act if act.what == PAUSE else None), set()
        elif act.what == KICK:
            self._kicked.add((PeerId(act.subject), int(act.value)))
        elif act.what == SET and act.subject == "run.outer_steps":
            self._last_round = int(act.value)

    def _counts(self, lineage: int, act: e.Steered) -> None:
        run, what = self._run, f"{act.what} {act.subject}"
        mark = (act.what, act.subject, act.value, act.number, act.lineage)
        if mark in self._seen or act.number != self._number + 1 or act.lineage != lineage:
            self._found(f"{what} number {act.number} counts after {self._number}")
        self._seen.add(mark)
        if run is None:
            return
        if act.signature:
            if act.signature != toy_signature(run.root, act_statement(run.root, act)):
                self._found(f"{what} counts with a forged signature, at {act.by}")
        elif not run.voters_steer or act.by not in self._voted:
            self._found(f"{what} counts without an operator, at {act.by}")
