"""The keys that may change, and their values."""

import pytest

from protocols.acts.settings import (
    SETTINGS,
    parsed_setting,
    rules_with,
    run_with,
    setting_objection,
)
from protocols.types.errors import ConfigError
from tests.protocols.scenes import RULES, run


@pytest.mark.parametrize(
    ("key", "typed", "value"),
    [
        ("run.outer_steps", "200", "200"),
        ("run.peers_min", " 3", "3"),
        ("run.protocol.round_grace_s", "60", "60.0"),
        ("run.protocol.quorum", "2", "2"),
    ],
)
def test_a_value_is_written_in_one_way(key: str, typed: str, value: str) -> None:
    assert parsed_setting(key, typed) == value
    assert setting_objection(key, value) == ""
    assert (setting_objection(key, typed) == "") == (typed == value)


@pytest.mark.parametrize(
    ("key", "typed", "words"),
    [
        ("run.method.inner_steps", "9", "cannot change while the run is under way"),
        ("run.protocol.silence_timeout_s", "9", "these can: run.outer_steps"),
        ("run.outer_steps", "0", "a whole number above 0"),
        ("run.outer_steps", "1.5", "a whole number above 0"),
        ("run.outer_steps", str(1 << 40), "at most"),
        ("run.protocol.quorum", "true", "a whole number"),
        ("run.protocol.round_grace_s", "nan", "seconds above 0"),
        ("run.protocol.round_grace_s", "inf", "seconds above 0"),
        ("run.protocol.round_grace_s", "-1", "seconds above 0"),
    ],
)
def test_another_key_or_value_is_refused_in_one_line(key: str, typed: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parsed_setting(key, typed)
    assert setting_objection(key, typed)


def test_the_core_reads_the_new_values_and_schedules_the_first_ones() -> None:
    begun = run(outer_steps=9)
    changed = run_with(begun, {"run.outer_steps": "12", "run.protocol.quorum": "2"})
    assert (changed.outer_steps, changed.run_json) == (12, begun.run_json)
    rules = rules_with(RULES, {"run.protocol.quorum": "2", "run.protocol.round_grace_s": "5.5"})
    assert (rules.quorum, rules.round_grace_s) == (2, 5.5)
    assert rules_with(RULES, {}) is RULES


def test_every_rule_that_may_change_is_one() -> None:
    names = [key.rpartition(".")[2] for key in SETTINGS if key.startswith("run.protocol.")]
    assert all(hasattr(RULES, name) for name in names)
