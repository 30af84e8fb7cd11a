"""A plan of faults survives its file; what is no plan is refused with the reason."""

from pathlib import Path

import pytest

from protocols.types.errors import ConfigError
from sims.scenarios.fault_plan import draw_plan
from sims.scenarios.plan_files import read_plan, write_plan

FAULT = '{"at_s": 1, "kind": "kill", "peer": 0, "other": 0, "duration_s": 0.5}'


def test_what_was_written_is_read(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    for plan in (draw_plan(7, until_s=30.0), []):
        write_plan(file, plan)
        assert read_plan(file) == plan


def test_a_plan_may_be_written_by_hand(tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(f"[{FAULT}]")
    (fault,) = read_plan(file)
    assert (fault.at_s, fault.kind, fault.duration_s) == (1.0, "kill", 0.5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        "[3]",
        "[{}]",
        f"[{FAULT.replace('kill', 'hug')}]",
        f"[{FAULT.replace('1', '-1')}]",
        f"[{FAULT.replace('1', 'null')}]",
    ],
)
def test_what_is_no_plan_is_refused(text: str, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"plan\.json"):
        read_plan(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.json cannot be read"):
        read_plan(tmp_path / "none.json")
