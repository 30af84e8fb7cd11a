"""The command line, and what a person sees."""

from collections.abc import Mapping

import pytest

from benchmarks.exchange import chosen, main, table
from benchmarks.exchanging.figures import SystemResult
from protocols.types.errors import ConfigError

MEASURED = SystemResult(
    system="lowcomm",
    version="1",
    codec="int8",
    median_s=0.5,
    min_s=0.25,
    cpu_s=0.125,
    wire_bytes=2_000_000,
    bit_identical=True,
    rms_error=0.007,
)
FAILED = SystemResult(system="gloo", version="2", error="gloo: ended")


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        ({"rtt": "100ms"}, "add --encrypted"),
        ({"rtt": "100ms", "encrypted": True, "against": "clear"}, "leave clear out of --against"),
        ({"line": "1 bps"}, "--line '1 bps'"),
        ({"rtt": "100"}, "--rtt '100'"),
        ({"loss": "x"}, "--loss 'x'"),
        ({"idle": "long"}, "--idle 'long'"),
        ({"codec": "fp32,int9"}, "contribution_codec"),
        ({"deadline": "soon"}, "--deadline 'soon'"),
        ({"congestion": "fast"}, "--congestion fast"),
        (
            {"against": "gloo,nobody"},
            "--against nobody: give some of gloo, tcp, bare, torchft, ",
        ),
        ({"codec": "int9"}, "contribution_codec"),
    ],
)
def test_a_mistake_is_said_before_anything_starts(
    typed: Mapping[str, str | bool], said: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        main(**typed)  # pyright: ignore[reportArgumentType]
    assert said in str(caught.value)


def test_each_other_system_once() -> None:
    assert [one.name for one in chosen("hivemind,gloo,hivemind")] == ["hivemind", "gloo"]
    assert chosen("none") == []


def test_a_person_sees_the_figures_that_there_are() -> None:
    shown = table([MEASURED, FAILED])
    headings = [str(column.header) for column in shown.columns]
    assert "rms\nerror" in headings
    assert "share\nof line" not in headings
    cells = [list(column.cells) for column in shown.columns]
    assert [cell[0] for cell in cells[:4]] == ["lowcomm", "int8", "0.5000", "0.2500"]
    assert cells[-1] == ["yes", ""]
    assert cells[2] == ["0.5000", ""]
