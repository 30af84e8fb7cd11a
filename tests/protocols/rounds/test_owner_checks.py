"""Owner checks: when a peer asks for which blocks, and when it reports a result as held."""

import pytest

from protocols.interface import commands as c
from protocols.interface.events import BlocksCompared, BlocksReceived, CopiesCompared, WrongPart
from protocols.messages import peer as m
from protocols.rounds.owner_checks import BLOCKS_CHECKED, block_elements, sample_size
from protocols.types.ids import PartBlocks, PeerId
from tests.protocols.fragment import Peer, only, sent, training
from tests.protocols.scenes import BORDERS, A, B, C, contributor

WRONG = PartBlocks(2, (7, 9))
SAMPLE = (PartBlocks(0, (1, 5)), PartBlocks(2, (0,)))


def checking() -> Peer:
    """B, which owns part 1 and has contributed, and has all results."""
    peer = training()
    peer.rounds.exchange.checks.on = True
    peer.contributes()
    peer.gets_slices(A, C)
    peer.does()
    peer.gets_results(A, B, C)
    return peer


def answered(peer: Peer, *senders: PeerId) -> list[c.Command]:
    for sender in senders:
        peer.rounds.exchange.checked(BlocksReceived(sender, peer.stamp(), sender))
    return peer.does()


def compared(peer: Peer, *wrong: WrongPart) -> list[c.Command]:
    peer.rounds.exchange.checked(BlocksCompared(peer.stamp(), wrong))
    return peer.does()


def copies(peer: Peer, owner: PeerId, *contributors: PeerId) -> list[c.Command]:
    for each in contributors:
        peer.rounds.exchange.checked(BlocksReceived(owner, peer.stamp(), each))
    return peer.does()


def test_a_result_is_held_only_once_it_is_checked() -> None:
    peer = checking()
    stamp = peer.stamp()
    assert only(c.AskBlocks, peer.does()) == [
        c.AskBlocks(A, stamp, (0, 2), 2),
        c.AskBlocks(C, stamp, (0, 2), 2),
    ]
    assert peer.does() == [], "each is asked once"
    assert peer.rounds.exchange.missing() == (A, C)
    assert answered(peer, A) == []
    assert peer.rounds.exchange.missing() == (C,)
    terms = (contributor(A), contributor(B), contributor(C))
    assert answered(peer, C) == [c.CompareBlocks(stamp, (0, 2), terms)]
    assert sent(m.Hold, peer.does()) == []
    assert len(sent(m.Hold, compared(peer))) == 1
    assert peer.rounds.exchange.missing() == ()


def test_a_peer_on_a_new_connection_is_asked_again_unless_it_has_answered() -> None:
    peer = checking()
    peer.does()
    answered(peer, A)
    peer.rounds.forget(A)
    peer.rounds.forget(C)
    assert [x.peer for x in only(c.AskBlocks, peer.does()) if isinstance(x, c.AskBlocks)] == [C]


def test_an_answer_about_another_attempt_does_not_count() -> None:
    peer = checking()
    peer.does()
    late = peer.stamp(attempt=3)
    peer.rounds.exchange.checked(BlocksReceived(A, late, A))
    peer.rounds.exchange.checked(BlocksReceived(C, late, C))
    peer.rounds.exchange.checked(BlocksCompared(late, ()))
    peer.rounds.exchange.checked(CopiesCompared(late, C, ()))
    assert peer.does() == []


def test_an_owner_with_the_right_slices_and_a_wrong_sum_is_at_fault() -> None:
    peer = checking()
    stamp = peer.stamp()
    peer.does()
    answered(peer, A, C)
    asked = compared(peer, WrongPart(WRONG))
    assert asked == [
        c.AskCopies(C, stamp, A, (WRONG,)),
        c.AskCopies(C, stamp, B, (WRONG,)),
    ]
    assert peer.rounds.exchange.missing() == (C,)
    assert copies(peer, C, A, B) == [c.CompareCopies(stamp, C, (A, B))]
    peer.rounds.exchange.checked(CopiesCompared(stamp, C, ()))
    told = peer.does()
    assert sent(m.WrongResult, told) == [(A, m.WrongResult(stamp, 2, (C,)))]
    assert [x.kind for x in told if isinstance(x, c.Observation)] == ["owner"]
    assert peer.does() == [], "said once, and never held"
    peer.rounds.forget_reports()
    assert len(sent(m.WrongResult, peer.does())) == 1, "a new leader is told"


@pytest.mark.parametrize(("differing", "named"), [((A,), (A, C)), ((B,), (C,))])
def test_an_owner_with_other_slices_or_their_contributor_is_at_fault(
    differing: tuple[PeerId, ...], named: tuple[PeerId, ...]
) -> None:
    """Whether the bytes of B itself are right, B knows."""
    peer = checking()
    peer.does()
    answered(peer, A, C)
    compared(peer, WrongPart(WRONG))
    copies(peer, C, A, B)
    peer.rounds.exchange.checked(CopiesCompared(peer.stamp(), C, differing))
    assert sent(m.WrongResult, peer.does()) == [(A, m.WrongResult(peer.stamp(), 2, named))]


def test_a_gathered_result_tells_by_itself_whose_slice_differs() -> None:
    peer = checking()
    peer.does()
    answered(peer, A, C)
    told = compared(peer, WrongPart(WRONG, (A,)))
    assert only(c.AskCopies, told) == []
    assert sent(m.WrongResult, told) == [(A, m.WrongResult(peer.stamp(), 2, (A, C)))]


def test_two_contributions_are_not_checked() -> None:
    peer = training()
    peer.rounds.exchange.checks.on = True
    peer.contributes()
    peer.leaves(A, B)
    peer.does()
    peer.gets_results(A, B, attempt=1)
    made = peer.does()
    assert only(c.AskBlocks, made) == []
    assert len(sent(m.Hold, made)) == 1


def wants(peer: Peer, asker: PeerId, asked: m.BlocksWanted) -> list[c.Command]:
    return peer.rounds.exchange.blocks_wanted(asker, asked)


def test_a_contributor_answers_once_for_each_attempt() -> None:
    peer = training()
    peer.contributes()
    stamp = peer.stamp()
    asked = m.BlocksWanted(stamp, B, SAMPLE)
    answer = c.SendBlocks(A, stamp, contributor(B), SAMPLE)
    assert wants(peer, A, asked) == [answer]
    assert wants(peer, A, asked) == [], "nobody reads all of it, sample by sample"
    assert wants(peer, C, asked) == [c.SendBlocks(C, stamp, contributor(B), SAMPLE)]
    ahead = m.BlocksWanted(peer.stamp(attempt=1), B, SAMPLE)
    assert len(wants(peer, A, ahead)) == 1, "our log may be behind"
    assert wants(peer, A, m.BlocksWanted(peer.stamp(attempt=4), B, SAMPLE)) == []


BLOCKS = -(-(BORDERS[1] - BORDERS[0]) // block_elements(1))


@pytest.mark.parametrize(
    "sample",
    [
        (),
        (PartBlocks(3, (0,)),),
        (PartBlocks(0, ()),),
        (PartBlocks(0, (BLOCKS,)),),
        (PartBlocks(0, (1, 1)),),
        (PartBlocks(0, (2, 1)),),
        (PartBlocks(2, (0,)), PartBlocks(0, (0,))),
        (PartBlocks(0, (0,)), PartBlocks(0, (1,))),
    ],
)
def test_blocks_that_do_not_exist_are_not_sent(sample: tuple[PartBlocks, ...]) -> None:
    peer = training()
    peer.contributes()
    assert wants(peer, A, m.BlocksWanted(peer.stamp(), B, sample)) == []
    last = (PartBlocks(0, (BLOCKS - 1,)),)
    assert len(wants(peer, A, m.BlocksWanted(peer.stamp(), B, last))) == 1


def test_an_owner_tells_once_which_slices_it_has_summed() -> None:
    peer = training()
    peer.contributes()
    sample = (PartBlocks(1, (3,)),)
    asked = m.BlocksWanted(peer.stamp(), A, sample)
    assert wants(peer, C, asked) == [], "nothing is summed yet"
    peer.gets_slices(A, C)
    peer.does()
    assert wants(peer, C, asked) == [c.SendBlocks(C, peer.stamp(), contributor(A), sample)]
    assert wants(peer, C, asked) == []
    other = m.BlocksWanted(peer.stamp(), A, (PartBlocks(0, (3,)),))
    assert wants(peer, A, other) == [], "the part of another owner"


def test_blocks_are_multiples_of_the_grain() -> None:
    assert [block_elements(grain) for grain in (1, 64, 256, 4096)] == [64, 64, 256, 4096]
    assert block_elements(48) == 96


@pytest.mark.parametrize("checkers", [2, 3, 5, 15])
def test_all_receivers_together_find_one_wrong_block_in_a_hundred(checkers: int) -> None:
    drawn = checkers * sample_size(checkers)
    assert drawn >= BLOCKS_CHECKED
    assert 1 - 0.99**drawn >= 0.95
