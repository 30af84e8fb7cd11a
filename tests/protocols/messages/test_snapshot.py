"""A snapshot of what the log says loses nothing of it, on the disk and on the wire."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocols.messages import log_entries as e
from protocols.messages.snapshot import NewestCut, RunStateSnapshot
from protocols.state import transitions
from protocols.state.run_state import RunState
from protocols.types.ids import PeerId, Version
from protocols.types.sample_ranges import Grant, SampleRange
from protocols.wire.codec import decode_image, encode_image
from protocols.wire.validators import WireError
from tests.protocols.scenes import (
    BORDERS,
    START,
    A,
    B,
    C,
    contributor,
    info,
    log_of,
    members_of,
    part_digest,
    run,
    state_digest,
    view,
)


def cut(peer: PeerId, slot: int, round_: int = 0) -> e.Cut:
    digest = state_digest(round_) if round_ else START
    return e.Cut(info(peer, slot), (A,), (Version(0, round_, digest),))


def commit(round_: int, number: int, *roster: PeerId, attempt: int = 0) -> e.Commit:
    terms = tuple(contributor(peer, round_) for peer in roster)
    digest = part_digest(round_)
    return e.Commit(number, 0, round_, attempt, terms, BORDERS, digest, state_digest(round_ - 1))


OF_FOUNDER = e.TokenTerms("0e" * 16, "2c" * 32, 1, 99, witness=False, issuer=PeerId(""))
STORY: tuple[e.Entry, ...] = (
    run(outer_steps=99),
    e.TokenSpent(OF_FOUNDER, A, "1f" * 32, b"certificate of a", b"s" * 64, b"p" * 64),
    e.Member(info(A)),
    e.Elected(A),
    cut(B, 1),
    e.Member(info(B, 1)),
    e.Voter(B, votes=True, why="there is a place"),
    view(1, A, B),
    commit(1, 1, A, B),
    e.TokenSpent(
        e.TokenTerms("0f" * 16, "2d" * 32, 1, 99, witness=True, issuer=PeerId("")),
        PeerId("d.00000004"),
        "1e" * 32,
        b"certificate",
        b"s" * 64,
        b"p" * 64,
    ),
    e.TokenIssued(replace(OF_FOUNDER, number="3c" * 16, uses=9, issuer=A)),
    e.Revoked(PeerId("x.00000009"), PeerId("d.00000004"), "stolen"),
    e.TokenRevoked("0f" * 16, PeerId("d.00000004"), "in a public chat"),
    e.Restore(5, (Version(0, 1, state_digest(1)),), 10, 200, (), 0, False, 3),
    view(1, A, B, first_round=2),
    commit(2, 1, A, B),
    e.Lost(B, "silent"),
    cut(C, 8, 2),
    e.Elected(A),
    view(2, A, first_round=3),
    e.Attempt(2, 0, 3, 1, (A,), (A, A, A), "slow"),
    e.Lease((Grant(A, (SampleRange(0, 40),)),)),
    e.Member(info(C, 8)),
    e.Lease((Grant(A, (SampleRange(40, 50),)), Grant(C, (SampleRange(50, 60),)))),
    e.Lost(C, "silent"),
)


def copied(run_state: RunState) -> RunState:
    """Through the wire."""
    other = RunState()
    transitions.become(other, decode_image(encode_image(transitions.image_of(run_state))))
    return other


@pytest.mark.parametrize("length", range(1, len(STORY) + 1))
def test_wherever_a_log_is_cut_its_snapshot_says_the_same(length: int) -> None:
    run_state = members_of(log_of(*STORY[:length]))
    assert copied(run_state) == run_state


@pytest.mark.parametrize("length", range(1, len(STORY)))
def test_a_snapshot_goes_on_as_its_log_would_have(length: int) -> None:
    whole = log_of(*STORY)
    run_state = copied(members_of(log_of(*STORY[:length])))
    for entry in whole.entries[length:]:
        transitions.apply(run_state, entry)
    assert run_state == members_of(whole)
    assert list(run_state.members) == list(members_of(whole).members), "the oldest first"


def test_a_snapshot_stays_what_it_was() -> None:
    """It may be under way, or waiting for the disk, while the log goes on."""
    log = log_of(*STORY[:7])
    run_state = members_of(log)
    image = transitions.image_of(run_state)
    transitions.apply(run_state, e.LogEntry(8, 1, STORY[7]))
    assert image == transitions.image_of(members_of(log))


def test_before_the_run_there_is_nothing_to_take_a_snapshot_of() -> None:
    with pytest.raises(AssertionError, match="nothing before the Run"):
        transitions.image_of(RunState())


# Bad bytes ------------------------------------------------------------------------------------

WHOLE = encode_image(transitions.image_of(members_of(log_of(*STORY))))


@pytest.mark.parametrize("length", range(0, len(WHOLE), 7))
def test_every_truncation_is_refused(length: int) -> None:
    with pytest.raises(WireError):
        decode_image(WHOLE[:length])


@given(st.integers(0, len(WHOLE) - 1), st.integers(0, 255))
@settings(max_examples=300, deadline=None)
def test_a_flipped_byte_is_an_image_or_a_wire_error_and_never_something_else(
    place: int, byte: int
) -> None:
    """What it holds is of the right type: nobody trips over it later."""
    payload = WHOLE[:place] + bytes((byte,)) + WHOLE[place + 1 :]
    try:
        image = decode_image(payload)
    except WireError:
        return
    assert isinstance(image, RunStateSnapshot)
    assert isinstance(image.run, e.Run)  # pyright: ignore[reportUnnecessaryIsInstance]
    transitions.become(RunState(), image)


IMAGE = transitions.image_of(members_of(log_of(*STORY)))
LEFT = e.Left(A, "x")


@pytest.mark.parametrize(
    "changes",
    [
        {"run": LEFT},
        {"restored": LEFT},
        {"granted": (NewestCut(4, LEFT),)},  # pyright: ignore[reportArgumentType]
        {"views": (LEFT,)},
        {"attempts": (LEFT,)},
        {"commits": (LEFT,)},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_an_entry_of_another_kind_is_refused(changes: dict[str, Any]) -> None:
    """Else whoever installs the snapshot would stop at a missing field: an AttributeError."""
    # Fails while wire/schemas.py checks these fields with `_entry`, which takes every kind.
    with pytest.raises(WireError):
        decode_image(encode_image(replace(IMAGE, **changes)))
