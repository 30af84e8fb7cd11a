"""Charts: what is drawn stands where its figure says, and no text becomes markup."""

import re
from collections.abc import Callable
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from markupsafe import Markup

from lowcomm.reports.figure_texts import (
    bytes_text,
    count_text,
    decimal_bytes_text,
    factor_text,
    milliseconds_text,
    seconds_text,
)
from lowcomm.reports.svg_charts import (
    SPANS_MAX,
    BytePair,
    ChartPhase,
    ChartRow,
    Mark,
    Series,
    coalesce,
    gantt,
    line_chart,
    nice_stride,
    nice_ticks,
    ratio_chart,
    spread,
    thin,
)

HOSTILE = '</text><script>alert("x")</script>&'


def parse(svg: Markup) -> ElementTree.Element:
    return ElementTree.fromstring(svg)  # Raises on anything that is not well-formed.


def texts(svg: Markup) -> list[str]:
    return [element.text or "" for element in parse(svg).iter("text")]


def by_class(svg: Markup, css: str) -> list[ElementTree.Element]:
    return [each for each in parse(svg).iter() if css in each.get("class", "").split()]


def number(element: ElementTree.Element, name: str) -> float:
    return float(element.get(name, "nan"))


def lines(*series: Series, width: int = 600, samples: bool = False) -> Markup:
    return line_chart(
        series, width=width, height=300, samples=samples, x_label="tokens", y_label="loss"
    )


def test_a_line_goes_from_corner_to_corner_of_its_axes() -> None:
    svg = lines(Series("alpha", "c0", [(0, 4.0), (1000, 2.0)]))
    (line,) = by_class(svg, "line")
    (x1, y1), (x2, y2) = (
        tuple(map(float, point.split(","))) for point in line.get("points", "").split()
    )
    grid = [each for each in by_class(svg, "grid") if number(each, "y1") == number(each, "y2")]
    assert (x1, x2) == (number(grid[0], "x1"), number(grid[0], "x2"))
    assert y1 == min(number(each, "y1") for each in grid)  # 4.0 is the uppermost tick,
    assert y2 == max(number(each, "y1") for each in grid)  # 2.0 the lowest.
    assert {"2", "2.5", "3", "3.5", "4"} <= set(texts(svg))
    assert "1 k" in texts(svg)


def test_with_samples_all_names_are_in_one_column_each_behind_a_piece_of_its_line() -> None:
    """Of many lines that end anywhere no two names lie on each other."""
    series = [Series(f"p{n}", f"c{n}", [(0, 3.0), (5 + n, 1.0)]) for n in range(6)]
    svg = lines(*series, samples=True)
    names = by_class(svg, "name")
    assert len(names) == 6
    assert len({number(each, "x") for each in names}) == 1
    heights = sorted(number(each, "y") for each in names)
    assert min(b - a for a, b in pairwise(heights)) >= 14.9
    pieces = {each.get("class") for each in parse(svg).iter("line")} - {"grid"}
    assert pieces == {f"line c{n}" for n in range(6)}


def test_names_of_lines_that_end_together_do_not_overlap() -> None:
    svg = lines(*(Series(f"p{n}", "c0", [(0, 3.0), (10, 1.0 + n / 1000)]) for n in range(4)))
    heights = sorted(number(each, "y") for each in by_class(svg, "name"))
    assert len(heights) == 4
    assert min(b - a for a, b in pairwise(heights)) >= 14.9


def test_a_line_that_ends_early_has_its_name_there() -> None:
    early = Series("gone", "c1", [(0, 3.0), (500, 2.5)])
    svg = lines(Series("stays", "c0", [(0, 3.0), (1000, 2.0)]), early)
    place = {each.text: number(each, "x") for each in by_class(svg, "name")}
    assert place["gone"] < 0.6 * place["stays"]


def test_an_unnamed_line_keeps_its_hover_title_only() -> None:
    svg = lines(Series("one of many", "many", [(0, 1.0), (1, 2.0)], named=False))
    assert "one of many" not in texts(svg)
    assert [each.text for each in parse(svg).iter("title")] == ["one of many"]


@pytest.mark.parametrize(
    "points", [[(0.0, 2.0), (0.0, 2.0)], [(0.0, 2.0), (5.0, 2.0)], [(0.0, 0.0), (1e12, 1e9)]]
)
def test_flat_and_huge_data_can_be_drawn(points: list[tuple[float, float]]) -> None:
    svg = lines(Series("alpha", "c0", points))
    assert "nan" not in svg
    assert len(by_class(svg, "line")) == 1


def test_phases_are_as_wide_as_they_are_long() -> None:
    row = ChartRow(
        "alpha", "c0", [ChartPhase(0, 2, "waiting", "w"), ChartPhase(2, 10, "training", "t")]
    )
    svg = gantt([row], width=500, end_s=10, ticks=[(5, "7")], marks=[])
    (waiting,), (training,) = by_class(svg, "waiting"), by_class(svg, "training")
    assert number(training, "width") == pytest.approx(4 * number(waiting, "width"), rel=0.01)
    assert number(training, "x") == pytest.approx(
        number(waiting, "x") + number(waiting, "width"), abs=0.2
    )
    (tick,) = by_class(svg, "commit")
    left, right = number(waiting, "x"), number(training, "x") + number(training, "width")
    assert number(tick, "x1") == pytest.approx((left + right) / 2, abs=0.2)
    assert "7" in texts(svg)


def test_a_phase_of_a_millisecond_is_still_seen() -> None:
    row = ChartRow(
        "alpha",
        "c0",
        [ChartPhase(0, 0.001, "reducing", "r"), ChartPhase(0.001, 600, "training", "t")],
    )
    svg = gantt([row], width=500, end_s=600, ticks=[], marks=[])
    assert number(by_class(svg, "reducing")[0], "width") >= 0.8


@pytest.mark.parametrize(
    ("at_s", "before", "ends_there"),
    [(50, False, False), (50, True, True), (0, True, False), (100, False, True)],
)
def test_the_label_of_a_mark_stays_inside(at_s: float, before: bool, ends_there: bool) -> None:
    row = ChartRow("alpha", "c0", [ChartPhase(0, 100, "training", "t")])
    mark = Mark(at_s, 0, "kill", "killed", before=before)
    svg = gantt([row], width=500, end_s=100, ticks=[], marks=[mark])
    (note,) = by_class(svg, "note")
    assert ("end" in note.get("class", "").split()) is ends_there
    assert note.text == "killed"


def test_round_numbers_above_the_rows_keep_their_distance() -> None:
    ticks = [(float(n), str(n)) for n in range(200)]
    row = ChartRow("alpha", "c0", [ChartPhase(0, 200, "training", "t")])
    svg = gantt([row], width=500, end_s=200, ticks=ticks, marks=[])
    shown = [each.text for each in by_class(svg, "mid") if number(each, "y") < 42]
    assert shown == ["0", "20", "40", "60", "80", "100", "120", "140", "160", "180"]
    assert len(by_class(svg, "commit")) == 200


def test_a_factor_is_told_and_drawn_on_a_logarithmic_axis() -> None:
    pairs = [BytePair("alpha", "c0", 1e6, 1e8), BytePair("beta", "c1", 1e6, 1e7)]
    svg = ratio_chart(pairs, width=500, actual="sent", other="all-reduce")
    assert [each.text for each in by_class(svg, "factor")] == ["100 x less", "10 x less"]
    far, near = (number(line, "x2") - number(line, "x1") for line in by_class(svg, "span"))
    assert far == pytest.approx(2 * near, abs=0.2)
    assert "1 MB" in texts(svg)


def test_nothing_to_draw_is_nothing() -> None:
    assert lines() == ""
    assert lines(Series("alpha", "c0", [(0, 1)])) == ""
    assert gantt([], width=500, end_s=10, ticks=[], marks=[]) == ""
    assert gantt([ChartRow("a", "c0", [])], width=500, end_s=0, ticks=[], marks=[]) == ""
    none = ratio_chart(
        [BytePair("alpha", "c0", 0, 10)], width=500, actual="sent", other="all-reduce"
    )
    assert none == ""


@pytest.mark.parametrize(
    "draw",
    [
        lambda: lines(Series(HOSTILE, "c0", [(0, 1), (1, 2)]), width=6000),
        lambda: gantt(
            [ChartRow(HOSTILE, "c0", [ChartPhase(0, 1, "training", HOSTILE)])],
            width=6000,
            end_s=1,
            ticks=[(1, HOSTILE)],
            marks=[Mark(0, 0, "kill", HOSTILE)],
        ),
        lambda: ratio_chart(
            [BytePair(HOSTILE, "c0", 1, 2)], width=6000, actual=HOSTILE, other=HOSTILE
        ),
    ],
)
def test_hostile_text_stays_text(draw: Callable[[], Markup]) -> None:
    svg = draw()
    assert "<script" not in svg
    assert HOSTILE in {each.text for each in parse(svg).iter()}


def test_a_long_name_takes_a_fifth_of_the_width_at_most() -> None:
    row = ChartRow("x" * 1000, "c0", [ChartPhase(0, 1, "training", "t")])
    svg = gantt([row], width=500, end_s=1, ticks=[], marks=[])
    assert texts(svg)[1] == "x" * 10 + ".."
    assert number(by_class(svg, "training")[0], "x") < 125


@pytest.mark.parametrize(
    ("low", "high", "count", "ticks"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (1.3, 5.9, 5, [2, 3, 4, 5]),
        (0, 0.03, 3, [0, 0.01, 0.02, 0.03]),
        (0, 7e6, 7, [0, 1e6, 2e6, 3e6, 4e6, 5e6, 6e6, 7e6]),
    ],
)
def test_ticks_are_round(low: float, high: float, count: int, ticks: list[float]) -> None:
    assert nice_ticks(low, high, count=count) == pytest.approx(ticks)


def test_strides_are_round() -> None:
    found = [nice_stride(count, limit=10) for count in (0, 10, 11, 50, 51, 100, 1000, 12345)]
    assert found == [1, 1, 2, 5, 10, 10, 100, 2000]


def test_labels_are_moved_apart_and_no_further() -> None:
    assert spread([50, 10], gap=15, low=0, high=100) == [50, 10]
    assert spread([50, 50, 52], gap=15, low=0, high=100) == [50, 65, 80]
    assert spread([99, 100], gap=15, low=0, high=100) == [85, 100]
    assert spread([], gap=15, low=0, high=100) == []
    assert spread([5, 5, 5], gap=15, low=0, high=10) == [0, 15, 30]  # More than fit.


def test_thinning_takes_means_of_neighbours() -> None:
    points = [(float(n), float(n % 2)) for n in range(10)]
    assert thin(points, limit=5) == [(0.5, 0.5), (2.5, 0.5), (4.5, 0.5), (6.5, 0.5), (8.5, 0.5)]
    assert thin(points, limit=10) == points
    assert thin([], limit=5) == []


def test_too_many_spans_show_what_they_mostly_were() -> None:
    spans: list[ChartPhase] = []
    for n in range(5000):
        spans += [
            ChartPhase(n, n + 0.9, "training", ""),
            ChartPhase(n + 0.9, n + 1, "reducing", ""),
        ]
    spans += [ChartPhase(5000, 6000, "waiting", "")]
    found = coalesce(spans)
    assert [(span.css, round(span.begin_s), round(span.end_s)) for span in found] == [
        ("training", 0, 5000),
        ("waiting", 5000, 6000),
    ]
    assert found[0].title == "mostly training"
    few = spans[:SPANS_MAX]
    assert coalesce(few) == few


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (bytes_text(0), "0 B"),
        (bytes_text(6_920_601), "6.6 MiB"),
        (bytes_text(3 << 40), "3.0 TiB"),
        (decimal_bytes_text(100_000_000), "100 MB"),
        (count_text(999), "999"),
        (count_text(999.6), "1 k"),
        (count_text(12_345), "12.3 k"),
        (count_text(9.18e9), "9.18 G"),
        (count_text(0), "0"),
        (seconds_text(0.0764), "0.076 s"),
        (seconds_text(42.4), "42 s"),
        (milliseconds_text(0.00214), "2.1 ms"),
        (milliseconds_text(1.5), "1500 ms"),
        (seconds_text(59.7), "60 s"),
        (seconds_text(185), "3:05"),
        (seconds_text(3723), "1:02:03"),
        (factor_text(20.49), "20.5 x less"),
        (factor_text(0.5), "2 x more"),
    ],
)
def test_figures_read_well(text: str, expected: str) -> None:
    assert text == expected


def test_a_chart_refers_to_nothing() -> None:
    svg = lines(Series("alpha", "c0", [(0, 1), (1, 2)]))
    assert not re.search(r"href|url\(|http|style=|id=", svg)
