"""Acts in words for people."""

from protocols.acts.statements import author, described, goes, subject
from protocols.messages import log_entries as e
from tests.protocols.scenes import A, B, ordered, steered

ALICE = "bb" * 32


def test_an_act_names_its_operator() -> None:
    pause = steered("pause", why="noon")
    assert described(pause) == f"the run is paused, by {A} (noon)"
    assert author(ordered(pause, "aa" * 32)) == f"the root key, at {A}"
    assert author(ordered(pause, ALICE, of="aa" * 32)) == f"operator bbbbbbbb, at {A}"
    set_ = steered("set", "run.outer_steps", "9")
    assert described(set_) == f"run.outer_steps is 9, by {A}"
    assert (subject(set_), subject(pause)) == ("set run.outer_steps", "pause")
    assert "operator bbbbbbbb: add operator" in described(steered("add operator", ALICE))


def test_two_acts_remove_a_peer() -> None:
    assert goes(steered("kick", B, "1")) == goes(e.Revoked(B, A, "")) == B
    assert goes(steered("set", B, "1")) is None
    assert goes(e.TokenRevoked("0f" * 16, A, "")) is None
