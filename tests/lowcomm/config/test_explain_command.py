"""What `lowcomm config explain` prints."""

import pytest

from lowcomm.config.explain_command import explain, key_names
from protocols.types.errors import ConfigError


def said(capsys: pytest.CaptureFixture[str], key: str = "") -> str:
    explain(key)
    return capsys.readouterr().out


def test_a_key_is_explained_with_its_default_type_and_kinds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = said(capsys, "run.optimizer.betas")
    assert out.startswith("run.optimizer.betas = [0.9, 0.95]    (2 numbers): every optimizer\n    ")
    assert "`" not in out


def test_the_last_word_of_a_key_finds_all_keys_that_end_with_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = said(capsys, "name")
    assert "run.name = " in out
    assert "node.name = " in out


def test_a_key_whose_default_depends_on_the_kind_is_shown_for_each(
    capsys: pytest.CaptureFixture[str],
) -> None:
    entries = said(capsys, "run.method.inner_steps").split("\n\n")
    assert len({entry.split("    ")[0] for entry in entries}) == len(entries) > 2
    assert 'with name = "sparseloco"' in "".join(entries)


def test_a_table_is_explained_with_all_its_keys(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys, "[node]")
    assert out.startswith("[node]\n    ")
    assert all(f"{name} = " in out for name in key_names("node."))


def test_without_a_key_all_tables_are_described(capsys: pytest.CaptureFixture[str]) -> None:
    out = said(capsys)
    assert all(f"[{table}]" in out for table in ("run", "run.model", "run.method", "node"))
    assert max(map(len, out.splitlines())) <= 100


@pytest.mark.parametrize(
    ("wrong", "alike"), [("inner_stepz", "run.method.inner_steps"), ("qqqqq", "run.model")]
)
def test_an_unknown_key_is_one_line_with_what_is_alike(wrong: str, alike: str) -> None:
    with pytest.raises(ConfigError, match=f"no key {wrong}: .*{alike}"):
        explain(wrong)
