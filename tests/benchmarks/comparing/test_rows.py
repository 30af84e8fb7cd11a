"""What is compared fits together."""

import pytest

from benchmarks.comparing import rows
from benchmarks.comparing.rows import (
    BARS,
    BASELINE,
    FULL,
    GRID,
    QUICK,
    ROWS,
    SCRATCH,
    base_of,
    choose,
    setting,
)
from protocols.types.errors import ConfigError


def test_every_method_has_a_grid_of_the_same_size_or_takes_anothers_point() -> None:
    names = [row.name for row in ROWS]
    assert len(set(names)) == len(names)
    for row in ROWS:
        if row.like:
            assert not row.points
            assert base_of(row).points
        else:
            assert len(row.points) == 4
            assert len({repr(point) for point in row.points}) == 4


def test_every_row_is_a_setting_in_every_size() -> None:
    for row in ROWS:
        for size in (FULL, GRID, QUICK, *([SCRATCH] if row.scratch else [])):
            made = setting(base_of(row).points[0], size, seed=1, world=row.world)
            assert made.steps == size.steps


def test_sizes_are_what_is_promised() -> None:
    made = setting(ROWS[0].points[0], FULL, seed=1)
    tokens = made.step_tokens * made.nodes
    assert FULL.steps * tokens == pytest.approx(6e6, rel=0.05)
    assert GRID.steps * 3 == FULL.steps
    for size in (FULL, GRID, QUICK):
        assert 0.3 <= size.warm_steps / size.steps <= 0.45
    assert not set(GRID.seeds) & set(FULL.seeds), "chosen on other seeds than it is judged by"
    assert len(FULL.seeds) == 3


def test_bars_are_about_rows() -> None:
    names = {row.name for row in ROWS}
    assert {BASELINE, *(bar.row for bar in BARS), *(bar.against for bar in BARS)} <= names


def test_rows_are_chosen_with_what_they_need(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose("") == list(ROWS)
    assert [row.name for row in choose("diloco churn")] == [BASELINE, "diloco", "diloco churn"]
    late = rows.Row(name="late", points=ROWS[1].points)
    asked = rows.Bar(row="late", against="diloco", within=0.01)
    monkeypatch.setattr(rows, "ROWS", (*ROWS, late))
    assert [row.name for row in choose("late")] == [BASELINE, "late"]
    monkeypatch.setattr(rows, "BARS", (*BARS, asked))
    assert [row.name for row in choose("late")] == [BASELINE, "diloco", "late"]
    with pytest.raises(ConfigError, match="--only fast: there are allreduce; diloco; "):
        choose("fast")
