"""The accounting notices what must never happen to a sample, and nothing else."""

from types import SimpleNamespace
from typing import Any

import pytest

from protocols.messages import log_entries as e
from protocols.messages.snapshot import DepartedSamples, HeldSamples
from protocols.state.sample_ledger import SampleLedger
from protocols.types.ids import Contributor, FragmentParts, PeerId, PeerInfo, Version, digest_text
from protocols.types.sample_ranges import Grant, Remaining, SampleRange, Samples
from sims.checkers import sample_checks as checker

A, B = PeerId("a.00000000"), PeerId("b.00000001")
RUN = 7
"""The first lineage."""


def ranges(*pairs: tuple[int, int]) -> Samples:
    return tuple(SampleRange(start, stop) for start, stop in pairs)


def node(peer: PeerId, incarnation: int, round_: int) -> Any:
    """One that contributes to this round, in the first lineage."""
    me = SimpleNamespace(peer=peer, incarnation=incarnation)
    rounds = SimpleNamespace(work=SimpleNamespace(given=SimpleNamespace(round=round_)))
    run_state = SimpleNamespace(lineage=RUN)
    core = SimpleNamespace(rounds=[rounds])
    return SimpleNamespace(core=core, me=me, run_state=run_state)


def finished(peer: PeerId, ledger: SampleLedger) -> Any:
    """Of the first lineage, after the first round."""

    def committed(_: int) -> int:
        return 1

    run_state = SimpleNamespace(ledger=ledger, lineage=RUN, committed=committed)
    process = SimpleNamespace(outcome="finished")
    return SimpleNamespace(peer=peer, run_state=run_state, process=process)


def info(peer: PeerId, incarnation: int) -> PeerInfo:
    return PeerInfo(peer, peer[0], incarnation, "h:1", 0)


class Story:
    """A and B contribute to each round; both have their samples."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.samples = checker.SampleChecks(self.found)
        self.samples.began(RUN)
        self.view(1, A, B)
        self.leases(A, (0, 20))
        self.leases(B, (20, 40))

    def view(self, number: int, *roster: PeerId, first_round: int = 1) -> None:
        parts = FragmentParts((roster[0],), (0, 8))
        self.reads(e.View(number, roster, (parts,), (first_round,)))

    def leases(self, peer: PeerId, *pairs: tuple[int, int]) -> None:
        self.reads(e.Lease((Grant(peer, ranges(*pairs)),)))

    def reads(self, entry: e.Entry) -> None:
        self.samples.check_entry(RUN, entry)

    def makes(self, peer: PeerId, round_: int, *samples: int, life: int = 1) -> None:
        manifest = digest_text(f"{peer} {round_} {life}")
        self.samples.encoded(node(peer, life, round_), manifest, round_, list(samples))

    def commits(self, round_: int, **said: tuple[int, int]) -> None:
        """Of the first lives of those that are named: one range each."""
        self.commits_of(round_, **{name: ranges(pair) for name, pair in said.items()})

    def commits_of(self, round_: int, **said: Samples) -> None:
        peers = [{"a": A, "b": B}[name] for name in said]
        terms = tuple(Contributor(x, 1, 1, digest_text(f"{x} {round_} 1")) for x in peers)
        self.reads(e.Commit(1, 0, round_, 0, terms, (0, 8), "", "", tuple(said.values())))


def test_rounds_of_samples_that_nobody_else_has_are_fine() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.makes(B, 1, *range(20, 30))
    story.commits(1, a=(0, 10), b=(20, 30))
    story.makes(A, 2, *range(10, 20))
    story.commits(2, a=(10, 20))
    story.leases(A, (40, 50))
    assert story.found == []


def test_a_sample_that_is_committed_again_is_found() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.commits(1, a=(0, 10))
    story.makes(B, 2, 9, *range(20, 30))
    story.commits_of(2, b=ranges((9, 10), (20, 30)))
    assert story.found == ["round 2 commits again samples of b.00000001: 1 samples (9, ...)"]


def test_a_commit_that_says_what_nobody_saw_is_found() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.commits(1, a=(0, 9))
    assert story.found == [
        "round 1 does not list the samples of the steps of a.00000000: 1 samples (9, ...)"
    ]


def test_steps_that_see_a_sample_twice_are_found() -> None:
    story = Story()
    story.makes(A, 1, 0, 1, 1)
    story.commits(1, a=(0, 2))
    assert story.found == ["a.00000000 sees a sample twice in one contribution"]


def test_a_lease_of_what_is_committed_is_found() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.commits(1, a=(0, 10))
    story.leases(B, (8, 12))
    assert story.found == ["b.00000001 is leased committed samples: 2 samples (8, 9, ...)"]


GONE = {
    "lost": e.Lost(A, "silent"),
    "left": e.Left(A, "asked to"),
    "restarted": e.Cut(info(A, 2), (B,), ()),
}


@pytest.mark.parametrize("how", GONE)
def test_a_lease_of_what_an_open_roster_may_count_is_found(how: str) -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.reads(GONE[how])
    story.leases(B, (0, 5))
    assert [text[:60] for text in story.found] == [
        "b.00000001 is leased samples of a contribution of a.00000000"
    ]


@pytest.mark.parametrize("how", ["attempt", "view", "commit"])
def test_once_nobody_can_count_it_a_lease_of_it_is_fine(how: str) -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.makes(B, 1, *range(20, 30))
    story.reads(GONE["restarted"])
    if how == "attempt":
        story.reads(e.Attempt(1, 0, 1, 1, (B,), (B,), "without a"))
    elif how == "view":
        story.view(2, A, B)
    else:
        story.commits(1, b=(20, 30))
    story.leases(B, (0, 5))
    assert story.found == []


def test_who_comes_back_in_the_same_life_may_still_be_counted() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.reads(GONE["lost"])
    story.reads(e.Cut(info(A, 1), (B,), ()))
    story.view(2, A, B)
    story.leases(B, (0, 5))
    assert len(story.found) == 1


def test_a_restore_goes_back_to_what_was_committed_then() -> None:
    story = Story()
    story.makes(A, 1, *range(10))
    story.commits(1, a=(0, 10))
    story.makes(A, 2, *range(10, 20))
    story.commits(2, a=(10, 20))
    right = Remaining(40, ranges((10, 40)))
    restore = e.Restore(RUN, (Version(0, 1, ""),), 0, 0, (), 0, False, 0, right)
    story.samples.restored(RUN, 8, restore)
    story.leases(B, (10, 20))
    assert story.found == []
    wrong = e.Restore(
        RUN, (Version(0, 1, ""),), 0, 0, (), 0, False, 0, Remaining(40, ranges((20, 40)))
    )
    story.samples.restored(RUN, 9, wrong)
    assert story.found == [
        "restored to round 1 with other samples: 10 samples (10, 11, 12, 13, 14, ...)"
    ]


@pytest.mark.parametrize(("roster", "found"), [((A, B), 0), ((B,), 1)])
def test_what_an_open_roster_named_before_a_restore_was_not_to_be_given_back(
    roster: tuple[PeerId, ...], found: int
) -> None:
    """Seed 1200277: who finished before the Restore was judged by the roster after it."""
    story = Story()
    story.view(2, *roster, first_round=2)
    story.makes(A, 1, *range(10))
    story.commits(1, a=(0, 10))
    ledger = SampleLedger(frontier=40, held={B: HeldSamples(B, 1, 0, ranges((20, 40)))})
    ledger.gone = [DepartedSamples(HeldSamples(A, 1, 0, ranges((10, 20))), view=2, until=0)]
    right = Remaining(40, ranges((10, 40)))
    story.samples.restored(
        RUN, 8, e.Restore(RUN, (Version(0, 1, ""),), 0, 0, (), 0, False, 0, right)
    )
    story.samples.at_the_end([finished(B, ledger)])
    assert story.found == [f"the samples that {A} held are never given back"] * found
