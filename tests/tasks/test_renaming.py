"""Renamed demonstrations: what changes, what does not, and what they teach."""

from collections.abc import Sequence

from tasks.data.demonstrations import Demonstration
from tasks.data.renaming import rename_words

WORDS = {"ĠPeru": 10, "Peru": 11, "ĠLima": 12, "Lima": 13, "ĠOslo": 14, "Oslo": 15, "XNA": 16, "YUL": 17}
"""The last two have one form alone."""
IN = 1
"""A token that every demonstration has."""


def demonstration(number: int, tokens: Sequence[int]) -> Demonstration:
    return Demonstration(
        item_id=str(number),
        prompt_ids=[IN, *tokens[:2]],
        response_ids=list(tokens[2:]),
        mask=[1] * len(tokens[2:]),
        turns=1,
    )


def many(first: Demonstration) -> list[Demonstration]:
    """`first` among others without names, in which no name is frequent."""
    return [first, *(demonstration(number, [2, 3, 4]) for number in range(1, 100))]


def test_a_name_has_one_other_name_in_the_whole_conversation() -> None:
    first = demonstration(0, [10, 16, 11, 5, 10, 12, 16])  # Peru with and without a space, Lima, XNA
    new_names = set()
    for renamed in rename_words(many(first), WORDS, copies=200, seed=0)[::100]:
        assert (renamed.item_id, renamed.mask) == (first.item_id, first.mask)
        (start, peru, xna), (peru_alone, five, peru_again, lima, xna_again) = (
            renamed.prompt_ids,
            renamed.response_ids,
        )
        assert (start, five) == (IN, 5)
        assert (peru_again, xna_again) == (peru, xna)
        assert peru in (10, 12, 14)
        assert peru_alone == peru + 1  # the same word's other form
        assert lima in {10, 12, 14} - {peru}  # no two become one
        assert xna in (16, 17)
        new_names.add((peru, lima, xna))
    assert len(new_names) == 3 * 2 * 2  # all that there are


def test_what_many_demonstrations_have_is_no_name() -> None:
    frequent = [demonstration(number, [10, 12, 16]) for number in range(100)]
    assert rename_words(frequent, WORDS, copies=3, seed=0) == 3 * frequent


def test_a_word_with_a_capital_is_a_name_if_half_have_it() -> None:
    words = {"ĠAsia": 10, "ĠPeru": 11, "Ġasks": 12}
    half = [demonstration(number, [10, 12, 5] if number < 50 else [2, 3, 4]) for number in range(100)]
    renamed = rename_words(half, words, copies=10, seed=0)
    assert {row.prompt_ids[1] for row in renamed[::100]} == {10, 11}
    assert {row.prompt_ids[2] for row in renamed[::100]} == {12}
    assert rename_words([*half, half[0]], words, copies=1, seed=0) == [*half, half[0]]


def test_the_renaming_is_seeded() -> None:
    first = demonstration(0, [10, 16, 11, 5, 10, 12, 16])
    one, same, other = (rename_words(many(first), WORDS, copies=20, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one != other
