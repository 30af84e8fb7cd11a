"""Sums are begun once, and results go to everybody once; of pairs to nobody."""

from dataclasses import replace

from protocols.interface.commands import ReducePart, SendResult
from protocols.rounds.contributions import Holdings
from protocols.rounds.done_once import DoneOnce
from protocols.rounds.reductions import reduce, share
from protocols.state.parts import undivided
from protocols.state.round_plan import RoundPlan
from protocols.types.ids import FragmentParts, Stamp
from tests.protocols.scenes import BORDERS, ELEMENTS, A, B, C, contributor

STAMP = Stamp(1, 2, 1, 0, 1, 0)
PLAN = RoundPlan(STAMP, (A, B), FragmentParts((A, B, A), BORDERS))
PAIRS = RoundPlan(STAMP, (A, B), undivided(ELEMENTS), pairs=((A, B),))
TERMS = (contributor(A), contributor(B))


def holding(*parts: int) -> Holdings:
    held = Holdings()
    for part in parts:
        for term in TERMS:
            held.add_slice(STAMP, part, term)
    return held


def test_what_can_be_summed_is_summed_once() -> None:
    held, done = holding(0, 1), DoneOnce()
    made = reduce(PLAN, A, held=held, done=done)
    assert made == [ReducePart(STAMP, 0, *BORDERS[:2], TERMS)], "part 1 is B's, part 2 lacks slices"
    assert reduce(PLAN, A, held=held, done=done) == []
    again = replace(PLAN, stamp=replace(STAMP, attempt=1), roster=(A,))
    assert reduce(again, A, held=held, done=done) == [
        ReducePart(again.stamp, 0, *BORDERS[:2], TERMS[:1])
    ]


def test_each_receiver_gets_a_result_once() -> None:
    held, done = holding(0), DoneOnce()
    reduce(PLAN, A, held=held, done=done)
    made = share(PLAN, A, {B}, held=held, done=done)
    assert made == [SendResult(B, STAMP, 0, TERMS)]
    made = share(PLAN, A, {B, C}, held=held, done=done)
    assert made == [SendResult(C, STAMP, 0, TERMS)]


def test_of_a_pair_each_keeps_its_own() -> None:
    held, done = holding(0), DoneOnce()
    assert reduce(PAIRS, B, held=held, done=done) == [ReducePart(STAMP, 0, 0, ELEMENTS, TERMS)]
    assert share(PAIRS, B, {A, C}, held=held, done=done) == []
