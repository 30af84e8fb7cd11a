"""Who meets whom; and a gossip run as one of its peers and its leader see it."""

from collections import Counter
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from protocols.interface import commands as c
from protocols.interface.events import PartReduced, ResultReceived, SliceReceived
from protocols.messages import log_entries as e
from protocols.messages import peer as m
from protocols.rounds.contributions import PartResult
from protocols.state.gossip_pairs import pairs_of, state_digest
from protocols.state.round_plan import RoundPlan
from protocols.types.ids import PeerId, Stamp, digest_text
from tests.protocols.fragment import Peer, only, sent
from tests.protocols.led import Led, a_rests, keep_alive, last, leading, of, say, written
from tests.protocols.scenes import (
    ELEMENTS,
    RULES,
    A,
    B,
    C,
    D,
    contributor,
    join,
)

PEERS = tuple(PeerId(f"p{i:02}") for i in range(30))
WHOLE = (0, ELEMENTS)


def pairs(peers: int, round_: int, fragment: int = 0) -> set[tuple[PeerId, ...]]:
    roster = PEERS[:peers]
    return set(pairs_of(roster, roster, fragment=fragment, round_=round_))


# Who meets whom -------------------------------------------------------------------------------


@given(peers=st.integers(1, 30), round_=st.integers(0, 1 << 32), fragment=st.integers(0, 9))
def test_everybody_meets_one_other_or_of_an_odd_number_one_nobody(
    peers: int, round_: int, fragment: int
) -> None:
    found = pairs(peers, round_, fragment)
    assert sorted(peer for pair in found for peer in pair) == list(PEERS[:peers])
    assert all(list(pair) == sorted(pair) for pair in found)
    assert Counter(map(len, found))[1] == peers % 2
    assert max(map(len, found)) <= 2


@given(peers=st.integers(2, 12), tournament=st.integers(0, 50))
def test_all_meet_all_before_any_two_meet_again(peers: int, tournament: int) -> None:
    rounds = peers - 1 + peers % 2
    met = Counter[tuple[PeerId, ...]]()
    for turn in range(rounds):
        met.update(pairs(peers, tournament * rounds + turn))
    assert set(met.values()) == {1}
    assert len(met) == peers * (peers - 1) // 2 + (peers if peers % 2 else 0)


@given(peers=st.integers(3, 30), round_=st.integers(0, 200))
def test_two_rounds_of_a_tournament_connect_everybody(peers: int, round_: int) -> None:
    if (round_ + 1) % (peers - 1 + peers % 2) == 0:
        return  # The next one is of another tournament.
    links = pairs(peers, round_) | pairs(peers, round_ + 1)
    reached = {PEERS[0]}
    for _ in range(peers):
        reached |= {peer for link in links if reached & set(link) for peer in link}
    assert reached == set(PEERS[:peers])


def test_tournaments_and_fragments_are_drawn_by_themselves() -> None:
    assert len({frozenset(pairs(8, 7 * n)) for n in range(12)}) > 6
    assert len({frozenset(pairs(8, 0, fragment)) for fragment in range(12)}) > 6


@given(peers=st.integers(2, 30), round_=st.integers(0, 99), gone=st.sets(st.integers(0, 29)))
def test_who_is_left_out_moves_nobody_else(peers: int, round_: int, gone: set[int]) -> None:
    roster = PEERS[:peers]
    left = {peer for number, peer in enumerate(roster) if number not in gone}
    found = pairs_of(roster, left, fragment=0, round_=round_)
    expected = (tuple(p for p in pair if p in left) for pair in pairs(peers, round_))
    assert set(found) == {pair for pair in expected if pair}


def test_a_state_is_named_by_its_round() -> None:
    assert len({state_digest(round_) for round_ in range(9)}) == 9


# One of the peers -----------------------------------------------------------------------------


def plan_of(peer: Peer) -> RoundPlan:
    plan = peer.run_state.open_plan(0)
    assert plan is not None
    return plan


def paired() -> tuple[Peer, PeerId, PeerId]:
    """B, its partner in the first round in which it has one, and who is alone in it."""
    peer = Peer(gossip=True)
    peer.trains()
    while len(pair := plan_of(peer).summed_by(B)) < 2:
        passes_by(peer)
    (partner,) = set(pair) - {B}
    (alone,) = {A, B, C} - set(pair)
    return peer, partner, alone


def digest_of(stamp: Stamp) -> str:
    return digest_text(repr(stamp))


def commits(peer: Peer, *roster: PeerId) -> None:
    stamp = plan_of(peer).stamp
    terms = tuple(contributor(one, stamp.round) for one in roster)
    of_ = (stamp.view, 0, stamp.round, stamp.attempt)
    peer.reads(e.Commit(*of_, terms, WHOLE, digest_of(stamp), "", held_by_all=True))


def passes_by(peer: Peer) -> list[c.Command]:
    """A round without B."""
    round_ = plan_of(peer).stamp.round
    peer.leaves(A, C)
    commits(peer, A, C)
    made = peer.does()
    made += peer.rounds.applied(round_, state_digest(round_))
    return made + peer.does()


def brings(peer: Peer, sender: PeerId) -> list[c.Command]:
    stamp = plan_of(peer).stamp
    assert peer.receives(SliceReceived(sender, stamp, 0, contributor(sender, stamp.round)))
    return peer.does()


def test_all_of_a_contribution_goes_to_the_partner_and_to_nobody_else() -> None:
    peer, partner, _ = paired()
    stamp = plan_of(peer).stamp
    me = contributor(B, stamp.round)
    made = peer.contributes(stamp.round)
    assert only(c.SendSlice, made) == [c.SendSlice(partner, stamp, 0, *WHOLE, me)]
    terms = tuple(contributor(one, stamp.round) for one in sorted((B, partner)))
    assert brings(peer, partner) == [c.ReducePart(stamp, 0, *WHOLE, terms)]
    peer.rounds.exchange.part_reduced(PartReduced(stamp, 0, digest_text("ours alone")))
    made = peer.does()
    assert only(c.SendResult, made) == []
    assert sent(m.Hold, made) == [(A, m.Hold(stamp, digest_of(stamp)))]
    commits(peer, A, B, C)
    assert c.ApplyRound(stamp, WHOLE, True) in peer.does()


def test_who_is_alone_sums_its_own() -> None:
    peer, partner, _ = paired()
    stamp = plan_of(peer).stamp
    peer.contributes(stamp.round)
    brings(peer, partner)
    peer.leaves(*sorted({A, B, C} - {partner}))
    again = plan_of(peer).stamp
    assert only(c.ReducePart, peer.does()) == [
        c.ReducePart(again, 0, *WHOLE, (contributor(B, stamp.round),))
    ]


def test_nobody_but_the_partner_makes_us_keep_a_slice() -> None:
    peer, partner, alone = paired()
    stamp = plan_of(peer).stamp
    peer.contributes(stamp.round)
    other = SliceReceived(alone, stamp, 0, contributor(alone, stamp.round))
    assert not peer.receives(other)
    ahead = replace(stamp, view=stamp.view + 1)
    assert peer.receives(replace(other, stamp=ahead)), "of a view that we have not read of"
    peer.leaves(*sorted({A, B, C} - {partner}))
    late = SliceReceived(partner, stamp, 0, contributor(partner, stamp.round))
    assert not peer.receives(late)


def test_it_waits_for_its_partner_alone() -> None:
    peer, partner, _ = paired()
    peer.contributes(plan_of(peer).stamp.round)
    assert peer.rounds.exchange.missing() == (partner,)
    assert plan_of(peer).makers_for(B) == {B, partner}


def test_a_round_without_us_leaves_our_state_and_our_work_as_they_are() -> None:
    peer, _, _ = paired()
    stamp = plan_of(peer).stamp
    peer.contributes(stamp.round)
    made = passes_by(peer)
    later = Stamp(stamp.run, stamp.lineage, stamp.view, 0, stamp.round, 1)
    assert only(c.SkipRound, made) == [c.SkipRound(later)]
    resumed = c.Resume(0, stamp.round, "rebase", first=False, finish=False)
    assert only(c.Resume, made) == [resumed]


def test_what_only_an_earlier_life_could_apply_takes_a_transfer() -> None:
    peer, _, _ = paired()
    commits(peer, A, B, C)
    assert only(c.SkipRound, peer.does()) == []
    assert peer.rounds.behind


def test_nobody_sends_us_a_result_and_nobody_gets_ours() -> None:
    peer, partner, _ = paired()
    stamp = plan_of(peer).stamp
    terms = tuple(contributor(one, stamp.round) for one in plan_of(peer).summed_by(B))
    assert not peer.receives(ResultReceived(partner, stamp, 0, terms, digest_text("x")))
    peer.rounds.exchange.held.add_result(stamp, 0, PartResult(terms, digest_text("x")))
    assert peer.rounds.exchange.fetched(partner, stamp, 0) == []


# Its leader -----------------------------------------------------------------------------------


def trio() -> Led:
    """B, C and D contribute to round 1."""
    scene = leading(B, C, D, gossip=True)
    a_rests(scene)
    say(scene, "ready", B, C, D)
    return scene


def holds(scene: Led, *peers: PeerId, attempt: int = 0) -> None:
    stamp = scene.stamp(1, attempt=attempt, number=of(scene))
    for peer in peers:
        scene.hears(peer, m.Hold(stamp, digest_of(stamp)))


def test_no_commit_without_one_of_a_pair_however_late() -> None:
    scene = trio()
    holds(scene, B, C)
    keep_alive(scene, RULES.reduction_timeout_s + 2, B, C, D)
    assert written(scene, e.Commit) == []
    assert last(scene, e.Attempt).roster == (B, C), "it takes another attempt"
    holds(scene, B, C, attempt=1)
    body = last(scene, e.Commit)
    assert [term.peer for term in body.contributors] == [B, C]
    assert body.held_by_all, "nobody needs another's result"


def test_one_that_is_alone_commits_though_others_are_members() -> None:
    scene = leading(B, gossip=True)
    a_rests(scene)
    say(scene, "ready", B)
    holds(scene, B)
    assert [term.peer for term in last(scene, e.Commit).contributors] == [B]


def test_a_view_divides_nothing() -> None:
    scene = trio()
    (parts,) = last(scene, e.View).parts
    assert (parts.owners, parts.borders) == ((), WHOLE)


def test_only_a_partner_says_that_a_contribution_cannot_be_averaged() -> None:
    scene = trio()
    plan = scene.core.run_state.open_plan(0)
    assert plan is not None
    (pair,) = (pair for pair in plan.pairs if len(pair) == 2)
    (alone,) = {B, C, D} - set(pair)
    scene.hears(alone, m.WaitsForPeers(plan.stamp, (pair[0],), void=True))
    assert written(scene, e.Attempt) == []
    scene.hears(pair[1], m.WaitsForPeers(plan.stamp, (pair[0],), void=True))
    assert last(scene, e.Attempt).roster == tuple(sorted({B, C, D} - {pair[0]}))


def test_a_joiner_gets_the_state_of_one() -> None:
    scene = trio()
    peer = PEERS[0]
    scene.comes(peer)
    scene.hears(peer, join(peer))
    assert len(last(scene, e.Cut).donors) == 1
