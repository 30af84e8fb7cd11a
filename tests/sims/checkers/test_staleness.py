"""How old work may be, as its checker sees it."""

import pytest

from protocols.messages import log_entries as e
from sims.checkers.history import HistoryCheckers
from sims.checkers.staleness import STALE_ROUNDS
from sims.node.toy_model import ToyContribution
from tests.protocols.scenes import BORDERS, A, contributor, manifest


@pytest.mark.parametrize(("age", "found"), [(0, False), (STALE_ROUNDS, False), (5, True)])
def test_a_round_counts_no_work_on_a_model_of_long_ago(*, age: int, found: bool) -> None:
    checkers, base_round = HistoryCheckers(), 3
    made = ToyContribution(A, 0, 1, 0, 10, 1, 1, base_round)
    round_ = base_round + age + 1
    term = contributor(A, round_)
    checkers.encoded(manifest(A, round_), made)
    checkers.staleness.committed(e.Commit(1, 0, round_, 0, (term,), BORDERS, "", ""))
    assert any("rounds old" in text for text in checkers.violations) == found


@pytest.mark.parametrize(("age", "found"), [(STALE_ROUNDS, False), (STALE_ROUNDS + 1, True)])
def test_old_work_does_not_move_along(*, age: int, found: bool) -> None:
    checkers = HistoryCheckers()
    checkers.staleness.kept(A, base_round=2, round_=2 + age)
    assert any("takes work along" in text for text in checkers.violations) == found
