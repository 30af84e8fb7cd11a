"""After an event the core has done all that is possible: it may skip looking only when nothing is.

protocols/quiet.py names the events after which it does not look; here it looks once more.
"""

import pytest

import sims.nodes
from protocols import commands as c
from protocols import events as v
from protocols.core import PeerCore
from protocols.quiet import is_beat
from sims.sweep import run_seed


class TwiceLooking(PeerCore):
    """Complains when another look would find something to do."""

    def handle(self, event: v.Event, now: float) -> list[c.Command]:
        due = self.deadline
        commands = super().handle(event, now)
        # A beat may leave what is due to the deadline, and a hand-over to the next event.
        if not self.stopped and not (is_beat(event) and (now >= due or self.standing.leaving)):
            before = len(self._out)
            again = self._progress(now)
            assert not again, f"{event!r} left something undone"
            assert len(self._out) == before, f"after {event!r}: {self._out[before:]}"
        return commands


@pytest.mark.parametrize("seed", range(940, 952))
def test_another_look_finds_nothing(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sims.nodes, "PeerCore", TwiceLooking)
    assert run_seed(seed).violations == []
