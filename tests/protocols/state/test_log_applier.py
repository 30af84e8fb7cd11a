"""One peer reads the log: what holds is applied once, and what an earlier life knew is not lost."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from protocols.interface.commands import Persist, Send
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.messages.persisted import Saved, Snapshot
from protocols.messages.snapshot import Branch, NewestCut, RunStateSnapshot
from protocols.raft.snapshot_chunks import pieces
from protocols.state import transitions
from protocols.state.log_applier import COMPACT_ENTRIES, KEPT_SHARE, LogApplier
from protocols.types.errors import LogError, RemoteProtocolError
from protocols.types.ids import Version
from protocols.types.limits import TERM_LEAP_MAX
from protocols.wire.codec import decode_image, encode_image
from tests.protocols.disk import Disk
from tests.protocols.scenes import (
    SEALS,
    START,
    A,
    B,
    C,
    info,
    log_of,
    members_of,
    ordered,
    run,
    steered,
    view,
)

BEGUN = (
    run(),
    e.Member(info(A)),
    e.Elected(A),
    e.Cut(info(B, 1), (A,), (Version(0, 0, START),)),
    e.Member(info(B, 1)),
)


def append(*bodies: e.Entry, after: int = 0, commit: int = 0, number: int = 1) -> m.Append:
    """From A, which leads in term 1."""
    entries = tuple(e.LogEntry(after + n, 1, body) for n, body in enumerate(bodies, 1))
    return m.Append(number, 1, after, min(after, 1), entries, commit)


def read(log_applier: LogApplier) -> list[e.Entry]:
    """Everything that holds now and was not applied before."""
    bodies: list[e.Entry] = []
    while (entry := log_applier.next_entry()) is not None:
        bodies.append(entry.body)
    return bodies


def reader(*bodies: e.Entry) -> LogApplier:
    """C, which has read these."""
    log_applier = LogApplier(C, None)
    log_applier.receive(A, append(*bodies, commit=len(bodies)), 0.0)
    assert read(log_applier) == list(bodies)
    return log_applier


def snapshot(*bodies: e.Entry) -> Snapshot:
    image = transitions.image_of(members_of(log_of(*bodies)))
    return Snapshot(len(bodies), 1, encode_image(image))


# Reading --------------------------------------------------------------------------------------


def test_only_what_holds_is_applied_and_only_once() -> None:
    log_applier = LogApplier(C, None)
    log_applier.receive(A, append(*BEGUN, commit=2), 0.0)
    assert read(log_applier) == list(BEGUN[:2])
    assert read(log_applier) == []
    log_applier.receive(A, append(after=5, commit=5), 0.0)
    assert read(log_applier) == list(BEGUN[2:])
    assert (log_applier.run_state.index, log_applier.raft.run) == (5, 1)


def test_the_log_of_another_run_is_not_read() -> None:
    log_applier = reader(*BEGUN)
    with pytest.raises(RemoteProtocolError, match="another run"):
        log_applier.receive(A, append(e.Left(B, "x"), after=5, commit=6, number=2), 0.0)
    assert log_applier.raft.log.last_index == 5


def test_an_invalid_entry_is_not_acknowledged_and_its_leader_is_not_followed() -> None:
    log_applier = reader(*BEGUN)
    with pytest.raises(RemoteProtocolError, match="invalid log: entry 7 of the log loses c"):
        log_applier.receive(A, append(e.Lost(B, "x"), e.Left(C, "?"), after=5, commit=7), 0.0)
    raft = log_applier.raft
    assert (raft.log.last_index, raft.commit_index, raft.leader) == (5, 5, None)
    assert not any(isinstance(command, Send) for command in raft.take_commands(0.0)), "no answer"
    log_applier.receive(A, append(e.Lost(B, "x"), after=5, commit=6), 0.0)
    assert (raft.log.last_index, read(log_applier)) == (5, []), "the leader of this term lies"
    (asks,) = (x for x in raft.take_commands(0.0) if isinstance(x, Send))
    assert asks == Send(A, m.Appended(raft.term + 1, False, 5)), "it may be elected again"
    sent = append(e.Lost(B, "x"), after=5, commit=6)
    log_applier.receive(B, replace(sent, term=2), 0.0)
    assert read(log_applier) == [e.Lost(B, "x")], "the next leader does not"


def test_an_entry_is_judged_by_the_whole_log_before_it() -> None:
    log_applier, version = reader(*BEGUN), (Version(0, 0, START),)
    log_applier.receive(A, append(e.Cut(info(C, 2), (A,), version), after=5), 0.0)
    log_applier.receive(A, append(e.Member(info(C, 2)), e.Lost(B, "x"), after=6), 0.0)
    with pytest.raises(RemoteProtocolError, match="loses b"):
        log_applier.receive(A, append(e.Lost(B, "y"), after=8, commit=9), 0.0)
    other = append(e.Lost(B, "y"), after=5, commit=6)
    entries = tuple(replace(entry, term=2) for entry in other.entries)
    log_applier.receive(B, replace(other, term=2, entries=entries), 0.0)
    assert read(log_applier) == [e.Lost(B, "y")], "a newer leader has another log"


def test_an_entry_on_the_disk_that_makes_no_sense_is_not_applied() -> None:
    saved = Saved(1, "", snapshot(*BEGUN), (e.LogEntry(6, 1, e.Left(C, "?")),))
    log_applier = LogApplier(C, saved)
    log_applier.raft.commit_index = 6
    with pytest.raises(LogError, match="entry 6 of the log loses c"):
        log_applier.next_entry()
    assert log_applier.run_state.index == 5


@pytest.mark.parametrize("again", [BEGUN[3:], (e.Witness(info(B)),)], ids=["member", "witness"])
def test_whoever_is_let_in_again_later_in_the_log_is_not_gone(again: tuple[e.Entry, ...]) -> None:
    """Stepwise seed 2130408: a witness that died was never struck by its next leader."""
    log_applier = LogApplier(C, None)
    log_applier.receive(A, append(*BEGUN, e.Lost(B, "x"), *again, commit=6), 0.0)
    read(log_applier)
    assert log_applier.returns(B)
    assert not log_applier.returns(A)
    last = 6 + len(again)
    log_applier.receive(A, append(after=last, commit=last), 0.0)
    read(log_applier)
    assert not log_applier.returns(B)


# Revocations that no signature proves -----------------------------------------------------------

OPERATED = (replace(run(), voters_revoke=False), *BEGUN[1:])
UNPROVED = (
    e.Revoked(B, A, ""),
    e.TokenRevoked("0f" * 16, A, ""),
    e.Revoked(B, A, "", b"x" * 64),
    replace(ordered(e.Revoked(A, A, "")), peer=B),
)


@pytest.mark.parametrize("forged", UNPROVED)
def test_a_lying_leader_gets_no_acknowledgement_of_a_revocation(forged: e.Revocation) -> None:
    log_applier = LogApplier(C, None, SEALS)
    log_applier.receive(A, append(*OPERATED, commit=5), 0.0)
    read(log_applier)
    sent = append(forged, after=5, commit=6, number=2)
    sent = replace(sent, run=log_applier.raft.run)
    with pytest.raises(RemoteProtocolError, match="root key"):
        log_applier.receive(A, sent, 0.0)
    log_applier.relayed(
        A, m.Relayed(replace(sent, term=7))
    )  # Of another term: it is not read at all.
    with pytest.raises(RemoteProtocolError, match="root key"):
        log_applier.relayed(A, m.Relayed(sent))
    assert log_applier.raft.log.last_index == 5
    assert read(log_applier) == []


def test_a_reader_that_knows_no_run_yet_looks_into_the_entries() -> None:
    unproved = append(*OPERATED, UNPROVED[0])
    with pytest.raises(RemoteProtocolError, match="operator only"):
        LogApplier(C, None, SEALS).receive(A, unproved, 0.0)
    log_applier = LogApplier(C, None, SEALS)
    log_applier.receive(A, append(*OPERATED), 0.0)
    log_applier.receive(A, append(ordered(e.Revoked(B, A, "")), after=5, number=3), 0.0)
    assert log_applier.raft.log.last_index == 6


def test_where_voters_revoke_a_false_signature_does_not_count_either() -> None:
    log_applier = LogApplier(C, None, SEALS)
    log_applier.receive(A, append(*BEGUN, e.Revoked(B, A, "")), 0.0)
    forged = e.TokenRevoked("0f" * 16, A, "", b"x" * 64)
    with pytest.raises(RemoteProtocolError, match="has not signed"):
        log_applier.receive(A, append(forged, after=6, number=2), 0.0)


@pytest.mark.parametrize("forged", UNPROVED)
def test_a_snapshot_with_such_a_revocation_is_not_taken(forged: e.Revocation) -> None:
    image = transitions.image_of(members_of(log_of(*OPERATED)))
    revoked = (forged,) if isinstance(forged, e.Revoked) else ()
    tokens = (forged,) if isinstance(forged, e.TokenRevoked) else ()
    image = replace(image, revoked=revoked, revoked_tokens=tokens, act_indices=(5,))
    log_applier = LogApplier(C, None, SEALS)
    with pytest.raises(RemoteProtocolError, match="no signature proves"):
        install(log_applier, Snapshot(5, 1, encode_image(image)))
    proved = replace(image, revoked=(ordered(e.Revoked(B, A, "")),), revoked_tokens=())
    assert install(log_applier, Snapshot(5, 1, encode_image(proved)), number=2) == [True]


@pytest.mark.parametrize("applied", [False, True])
def test_a_captured_act_gets_no_second_acknowledgement(*, applied: bool) -> None:
    """Also one that is not applied yet counts."""
    log_applier = begun()
    pause, on = orders_of(log_applier)
    for _ in range(2):  # The leader sends them again.
        log_applier.receive(A, append(pause, on, after=5, commit=7 if applied else 5), 0.0)
    assert read(log_applier) == ([pause, on] if applied else [])
    log_applier.receive(A, append(pause, after=9), 0.0)  # It has a gap: refused anyway.
    with pytest.raises(RemoteProtocolError, match="has the act pause, and another act"):
        log_applier.receive(A, append(pause, after=7), 0.0)
    assert log_applier.raft.log.last_index == 7


def test_an_act_gets_no_acknowledgement_before_the_one_that_it_follows() -> None:
    log_applier = begun()
    _, on = orders_of(log_applier)
    with pytest.raises(RemoteProtocolError, match="another act or a rollback came between"):
        log_applier.receive(A, append(on, after=5), 0.0)
    assert log_applier.raft.log.last_index == 5


def begun() -> LogApplier:
    log_applier = LogApplier(C, None, SEALS)
    log_applier.receive(A, append(*BEGUN, commit=5), 0.0)
    read(log_applier)
    return log_applier


def orders_of(log_applier: LogApplier) -> list[e.Steered]:
    """A pause and its end, signed for this run."""
    lineage = log_applier.run_state.lineage
    made = [steered(what, number=n, lineage=lineage) for n, what in ((1, "pause"), (2, "continue"))]
    return [ordered(act) for act in made]


def test_a_snapshot_with_a_forged_pause_is_not_taken() -> None:
    closed = replace(run(), voters_steer=False)
    run_state = members_of(log_of(closed, *BEGUN[1:]))
    pause = ordered(steered("pause", lineage=run_state.lineage))
    transitions.apply(run_state, e.LogEntry(6, 1, pause))
    image = transitions.image_of(run_state)
    for forged, words in (
        (replace(image, steered=(replace(pause, signature=b""),)), "no signature proves"),
        (replace(image, steered=(replace(pause, what="continue"),)), "another pause"),
        (replace(image, last_rounds=()), "another pause"),
        (replace(image, steered=(pause, pause), steered_indices=(6, 6)), "out of order"),
        (replace(image, steered_indices=()), "out of order"),
    ):
        with pytest.raises(RemoteProtocolError, match=words):
            install(LogApplier(C, None, SEALS), Snapshot(6, 1, encode_image(forged)))
    assert install(LogApplier(C, None, SEALS), Snapshot(6, 1, encode_image(image))) == [True]


def test_a_snapshot_cannot_change_the_run_so_that_voters_revoke() -> None:
    log_applier = LogApplier(C, None, SEALS)
    log_applier.receive(A, append(*OPERATED, commit=5), 0.0)
    read(log_applier)
    image = transitions.image_of(members_of(log_of(*BEGUN, e.Revoked(B, A, ""))))
    with pytest.raises(RemoteProtocolError, match="another run"):
        install(log_applier, Snapshot(6, 1, encode_image(image)))


# Snapshots ------------------------------------------------------------------------------------


def install(
    log_applier: LogApplier, taken: Snapshot, *, term: int = 1, number: int = 1
) -> list[bool]:
    return [log_applier.install(A, piece, 0.0) for piece in pieces(taken, number, term)]


def test_a_snapshot_takes_us_forward_in_place() -> None:
    """Others keep a reference to the membership: it must stay the same object."""
    log_applier = reader(*BEGUN[:3])
    run_state = log_applier.run_state
    assert install(log_applier, snapshot(*BEGUN)) == [True]
    assert log_applier.run_state is run_state
    assert run_state == members_of(log_of(*BEGUN))
    assert (
        log_applier.raft.log.base,
        log_applier.raft.commit_index,
        log_applier.raft.log.voters,
    ) == (5, 5, (A,))
    log_applier.receive(A, append(e.Lost(B, "x"), after=5, commit=6), 0.0)
    assert read(log_applier) == [e.Lost(B, "x")]


def test_a_snapshot_of_what_we_have_applied_changes_nothing() -> None:
    log_applier = reader(*BEGUN)
    assert install(log_applier, snapshot(*BEGUN[:4])) == [False]
    assert (log_applier.run_state.index, log_applier.raft.log.base) == (5, 0)


def test_a_snapshot_from_before_a_rollback_that_we_have_read_changes_nothing() -> None:
    """Seed 2324994966: a leader with a shorter memory of its reader was accused."""
    log_applier = reader(*BEGUN)
    before = log_applier.run_state.lineage
    back = e.Restore(before, (Version(0, 0, START),), 0, 0, (), 0, False, 1)
    log_applier.receive(A, append(back, after=5, commit=6), 0.0)
    assert read(log_applier) == [back]
    assert log_applier.run_state.lineage != before
    assert install(log_applier, snapshot(*BEGUN)) == [False]
    assert log_applier.run_state.index == 6


def test_a_snapshot_of_another_run_or_an_earlier_term_is_not_taken() -> None:
    log_applier = reader(*BEGUN[:3])
    assert install(log_applier, snapshot(*BEGUN), number=2) == [False]
    assert install(log_applier, snapshot(*BEGUN), term=0) == [False]
    assert log_applier.run_state.index == 3


def test_a_snapshot_that_makes_no_sense_is_its_senders_fault() -> None:
    log_applier = reader(*BEGUN[:3])
    with pytest.raises(RemoteProtocolError, match="sends a bad snapshot"):
        install(log_applier, Snapshot(9, 1, b"no image"))
    assert (log_applier.run_state.index, log_applier.raft.log.base) == (3, 0)


@pytest.mark.parametrize("index", [4, 9])
def test_a_snapshot_whose_image_is_of_another_index_is_its_senders_fault(index: int) -> None:
    """Else the next entry would be looked for where there is none: an IndexError."""
    # Fails while LogApplier.install does not compare the two.
    log_applier = reader(*BEGUN[:3])
    with pytest.raises(RemoteProtocolError):
        install(log_applier, replace(snapshot(*BEGUN), index=index))
    assert read(log_applier) == []


WHOLE = (Version(0, 1, START),)
ROOT = "0" * 64
IMPOSSIBLE: dict[str, Callable[[RunStateSnapshot], RunStateSnapshot]] = {
    "changes the lineage": lambda image: replace(image, lineage=image.lineage + 1),
    "empty Run": lambda image: replace(image, run=replace(image.run, grain=0)),
    "every fragment of a state": lambda image: replace(
        image, granted=(NewestCut(2, e.Cut(info(B), (A,), WHOLE * 2)),)
    ),
    "lacks a root": lambda image: replace(
        image, granted=(NewestCut(2, e.Cut(info(B), (A,), WHOLE, (ROOT, ROOT))),)
    ),
    "round of no fragment": lambda image: replace(
        image, attempts=(e.Attempt(1, 7, 1, 1, (A,), (A,), "why"),)
    ),
    "view that does not name": lambda image: replace(
        image, views=(replace(view(1, A), first_round=()),)
    ),
    "without peers": lambda image: replace(image, views=(replace(view(1, A), roster=()),)),
    "out of order": lambda image: replace(image, views=(view(2, A), view(1, A))),
    "a branch": lambda image: replace(image, branches=(Branch(1, ()),)),
}


@pytest.mark.parametrize("why", IMPOSSIBLE)
def test_a_snapshot_that_no_log_leads_to_is_the_fault_of_its_sender(why: str) -> None:
    log_applier, whole = reader(*BEGUN), snapshot(*BEGUN, e.Lost(B, "x"))
    image = IMPOSSIBLE[why](decode_image(whole.image))
    with pytest.raises(RemoteProtocolError, match=why):
        install(log_applier, replace(whole, image=encode_image(image)))
    assert install(log_applier, whole) == [True]


def test_a_snapshot_of_a_far_term_raises_the_term_by_one_leap() -> None:
    log_applier = reader(*BEGUN[:3])
    raft = log_applier.raft
    before = raft.term
    assert install(log_applier, snapshot(*BEGUN), term=1 << 62) == [False]
    assert raft.term == before + TERM_LEAP_MAX
    assert log_applier.run_state.index == 3


def test_a_long_log_becomes_a_snapshot_of_itself() -> None:
    log_applier = reader(*BEGUN)
    index = 5
    while index <= COMPACT_ENTRIES:
        log_applier.receive(A, append(e.Elected(A), after=index, commit=index + 1), 0.0)
        read(log_applier)
        index += 1
    taken = log_applier.raft.replication.snapshot
    assert taken is not None
    assert (taken.index, taken.term) == (index, 1)
    assert log_applier.raft.log.last_index == index
    assert len(log_applier.raft.log.entries) == COMPACT_ENTRIES // KEPT_SHARE, (
        "for a reader that is a little behind"
    )
    fresh = LogApplier(C, None)
    assert install(fresh, taken) == [True]
    assert fresh.run_state == log_applier.run_state


# Another life ---------------------------------------------------------------------------------


def test_a_restarted_peer_has_its_log_and_applies_nothing_before_it_holds_again() -> None:
    """Its end may give way to another leader's."""
    log_applier = LogApplier(C, Saved(4, B, None, tuple(log_of(*BEGUN).entries)))
    raft = log_applier.raft
    assert (raft.term, raft.election.state.vote, raft.run, raft.log.last_index) == (4, B, 1, 5)
    assert (raft.commit_index, read(log_applier)) == (0, [])
    assert log_applier.known == {A: "a:1", B: "b:1"}


def test_a_restarted_peer_begins_with_its_snapshot() -> None:
    later = (e.Cut(info(C, 2), (A,), (Version(0, 0, START),)), e.Lost(B, "x"))
    entries = tuple(log_of(*BEGUN, *later).entries[5:])
    log_applier = LogApplier(C, Saved(4, "", snapshot(*BEGUN), entries))
    assert log_applier.run_state == members_of(log_of(*BEGUN))
    assert (
        log_applier.raft.commit_index,
        log_applier.raft.log.last_index,
        log_applier.raft.run,
    ) == (5, 7, 1)
    assert log_applier.raft.log.voters == (A,)
    assert log_applier.known == {A: "a:1", C: "c:1"}
    taken = log_applier.raft.replication.snapshot
    assert taken is not None, "it can bring others up"


def test_a_snapshot_that_cannot_be_read_is_said_to_a_person() -> None:
    saved = Saved(1, "", replace(snapshot(*BEGUN), image=b"rot"), ())
    with pytest.raises(LogError, match="the log's snapshot cannot be read"):
        LogApplier(C, saved)


def test_everything_that_is_written_is_read_again() -> None:
    """Through a snapshot and what follows it."""
    disk, log_applier = Disk(), reader(*BEGUN[:3])
    install(log_applier, snapshot(*BEGUN))
    log_applier.receive(A, append(e.Lost(B, "x"), after=5, commit=6), 0.0)
    for command in log_applier.raft.take_commands(0.0):
        if isinstance(command, Persist):
            disk.write(command)
    again = LogApplier(C, disk.saved)
    assert again.raft.log.entries == log_applier.raft.log.entries
    assert (again.raft.term, again.raft.log.base) == (log_applier.raft.term, 5)


def test_a_restarted_peer_knows_where_witnesses_listen() -> None:
    """Step seed 26400338: one that alone had a vote, and nobody else in its snapshot, did not stand
    for election."""
    begun = (*BEGUN, e.Witness(info(C)), e.Lost(B, "x"), e.Lost(A, "x"))
    assert LogApplier(C, Saved(4, "", snapshot(*begun), ())).known == {C: "c:1"}
    assert LogApplier(C, Saved(4, "", None, tuple(log_of(*begun).entries))).known == {C: "c:1"}
