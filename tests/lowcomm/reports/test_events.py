"""The records of a node's events: their names in the file, and what all have in common."""

from dataclasses import fields, is_dataclass
from typing import get_type_hints

import pytest

from lowcomm.reports import events
from lowcomm.reports.events import KINDS, Event

READABLE = (int, float, str, bool, tuple[str, ...], tuple[int, ...], tuple[float, ...])
"""What lowcomm.reports.timeline takes from a line."""


def test_every_record_has_its_kind() -> None:
    records = {
        cls
        for cls in vars(events).values()
        if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
    }
    assert set(KINDS.values()) == records
    assert len(KINDS) == len(records)


def test_kinds_are_the_words_of_the_file_format() -> None:
    """Files of older runs are read by these names: they are never changed, only added to."""
    assert sorted(KINDS) == [
        *("attempt", "checkpoint", "commit", "diverged", "dropped", "elected", "evaluated"),
        *("fault", "finished", "forked", "gave_up", "layout", "left", "listening", "lost"),
        *(
            "member",
            "metrics",
            "metrics_listening",
            "note",
            "ranks_lost",
            "ranks_moving",
            "ranks_ready",
            "ranks_stalled",
            "ready",
            "reduced",
        ),
        *(
            "restored",
            "samples",
            "snapshot_received",
            "snapshot_served",
            "start",
            "stopped",
            "traffic",
            "view",
        ),
        *("waiting", "witness"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_is_frozen_and_holds_only_what_a_line_can(kind: str) -> None:
    cls = KINDS[kind]
    assert is_dataclass(cls)
    assert not hasattr(cls, "__dict__") or "__slots__" in vars(cls)
    assert cls.__dataclass_params__.frozen  # type: ignore[attr-defined]
    assert {field.name for field in fields(cls)} >= {"t", "peer", "name"}
    hints = get_type_hints(cls)
    assert all(hints[field.name] in READABLE for field in fields(cls))
    assert "kind" not in hints  # It would hide the one in the line.
