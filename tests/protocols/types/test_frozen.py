# pyright: reportUnnecessaryTypeIgnoreComment=true

"""Frozen without a cost: what is forbidden, the type checker forbids."""

from dataclasses import replace

from protocols.types.frozen import record


@record
class Word:
    text: str
    size: int = 0


def test_a_record_is_what_its_fields_say() -> None:
    word = Word("peer", 4)
    assert repr(word).endswith("Word(text='peer', size=4)")
    assert word == Word("peer", 4) != replace(word, size=5)
    assert {word: 1}[Word("peer", 4)] == 1
    assert not hasattr(word, "__dict__")


def test_nobody_may_assign_to_a_field_of_a_record() -> None:
    """The type checker is who forbids it: without an error in this line, it finds one here."""
    word = Word("peer")
    word.size = 1  # pyright: ignore[reportAttributeAccessIssue]
