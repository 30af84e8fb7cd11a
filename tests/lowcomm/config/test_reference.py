"""docs/configuration.md is what the code says."""

from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from lowcomm.config.reference import first_words, keys, reference, sections
from lowcomm.config.schema import RunConfig, load_config
from lowcomm.methods import AnyMethod, DiLoCoMethod, NoLoCoMethod, RoundMethod, SparseLoCoMethod

FILE = Path(__file__).parents[3] / "docs/configuration.md"
COMMAND = "python -m lowcomm.config.reference > docs/configuration.md"


def test_the_file_is_up_to_date() -> None:
    """Compared by lines: a failure shows the first one that differs."""
    assert FILE.read_text("utf-8").splitlines() == reference().splitlines(), f"run: {COMMAND}"


def test_every_key_has_a_docstring() -> None:
    missing = [(each.title, key.name) for each in sections() for key in each.keys if not key.text]
    assert not missing, "write a docstring below these fields of the configuration dataclasses"


def test_every_kind_of_table_has_a_section() -> None:
    titles = "\n".join(each.title for each in sections())
    for kind in (*get_args(AnyMethod), *get_args(get_type_hints(RunConfig)["optimizer"])):
        assert f'`name = "{kind.__dataclass_fields__["name"].default}"`' in titles


def test_defaults_are_toml_that_a_configuration_may_hold(tmp_path: Path) -> None:
    """Of the tables that are of one kind, and of DiLoCo."""
    lines: list[str] = []
    for each in sections():
        if each.title.removeprefix("## ") in (
            "`[run]`",
            "`[run.data]`",
            "`[run.model]`",
            "`[node]`",
        ):
            lines.append(each.title.removeprefix("## ").strip("`"))
            lines += [f"{key.name} = {key.default}" for key in each.keys]
    lines += ["[run.method]", *(f"{key.name} = {key.default}" for key in keys(DiLoCoMethod))]
    path = tmp_path / "run.toml"
    path.write_text("\n".join(lines))
    assert load_config(path).run == RunConfig()


def test_a_key_has_its_own_docstring_or_else_that_of_the_base_class() -> None:
    """SparseLoCo changes the default of inner_steps, NoLoCo also says what weight_max means."""
    base, sparse, noloco = (
        {key.name: key for key in keys(method)}
        for method in (RoundMethod, SparseLoCoMethod, NoLoCoMethod)
    )
    assert sparse["inner_steps"].default != base["inner_steps"].default
    assert sparse["inner_steps"].text == base["inner_steps"].text
    assert noloco["weight_max"].text != base["weight_max"].text


@pytest.mark.parametrize(
    ("name", "type_", "default"),
    [
        ("seed", "integer", "0"),
        ("lr", "number", "0.003"),
        ("betas", "2 numbers", "[0.9, 0.95]"),
        ("insecure", "boolean", "false"),
        ("averaged", "list of strings", '["embed"]'),
        ("device", '`"cpu"`, `"cuda"`', '"cpu"'),
    ],
)
def test_types_and_defaults_are_as_in_toml(name: str, type_: str, default: str) -> None:
    found = {key.name: key for each in sections() for key in each.keys}
    assert (found[name].type, found[name].default) == (type_, default)


def test_a_paragraph_is_one_line() -> None:
    class Documented:
        """The first
        paragraph.

        And more.
        """

    assert first_words(Documented) == "The first paragraph."
