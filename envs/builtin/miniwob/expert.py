"""Scripted solutions of tasks that always take the same number of turns.

Tasks are omitted if their buttons may overlap, or if their links are words that occur elsewhere as well.

Each step reads the objective and the accessibility tree from the observation.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from envs.builtin.browser.expert_steps import click, find
from envs.registry import ExpertStep

_OBJECTIVE = re.compile(r"^OBJECTIVE: (.*)$", re.MULTILINE)
_TEXT = re.compile(r"^\t*\[\d+\] (?:StaticText|cell|rowheader|heading) (['\"])(.*?)\1", re.MULTILINE)
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "x": operator.mul,
}


def objective(page: str) -> str:
    """The objective in an observation."""
    match = _OBJECTIVE.search(page)
    if match is None:
        raise LookupError("the observation has no objective")
    return match[1]


def find_quoted(page: str, nth: int = 0) -> str:
    """The `nth` text in quotes of the objective."""
    return str(re.findall(r'"(.*?)"', objective(page))[nth])


def find_pattern(page: str, pattern: str) -> str:
    """The first group of `pattern` in the objective."""
    match = re.search(pattern, objective(page))
    if match is None:
        raise LookupError(f"unknown objective: {objective(page)}")
    return match[1]


def texts(page: str) -> list[str]:
    """The texts of the page, in order."""
    return [match[2] for match in _TEXT.finditer(page)]


def _click(role: str, name: Callable[[str], str]) -> ExpertStep:
    return ExpertStep("", lambda page: f"click [{find(page, role, name(page))}]")


def _write(text: Callable[[str], str], *, nth: int | Callable[[str], int] = 0) -> ExpertStep:
    def action(page: str) -> str:
        position = nth if isinstance(nth, int) else nth(page)
        return f"type [{find(page, 'textbox', nth=position)}] [{text(page)}] [0]"

    return ExpertStep("", action)


def _choose(pattern: str) -> ExpertStep:
    """Choose from a list what the objective names."""
    return ExpertStep("", lambda page: f"type [{find(page, 'combobox')}] [{find_pattern(page, pattern)}] [0]")


def _ordinal(page: str, pattern: str) -> int:
    """`3rd` → 2."""
    return int(re.sub(r"\D", "", find_pattern(page, pattern))) - 1


def _nth_clicked(role: str, pattern: str) -> ExpertStep:
    """Click on the element that the objective names by its position."""
    return ExpertStep("", lambda page: f"click [{find(page, role, nth=_ordinal(page, pattern))}]")


SUBMIT = click("button", "Submit")


def _upper_or_lower(page: str) -> str:
    return find_quoted(page).upper() if "upper case" in objective(page) else find_quoted(page).lower()


def _word(page: str) -> str:
    return texts(page)[0].split()[_ordinal(page, r"the (\d+)\w\w word")].strip(",.")


def _value(page: str, label: str) -> str:
    lines = texts(page)
    return lines[lines.index(label) + 1]


def _label(nth: int) -> Callable[[str], str]:
    """The value for the label of the `nth` field, which follows the table."""
    return lambda page: _value(
        page, [text for text in texts(page) if text.endswith(":")][nth].removesuffix(":")
    )


def _sum(page: str) -> str:
    left, sign, right = texts(page)[0].removesuffix("=").split()
    return str(_OPERATIONS[sign](int(left), int(right)))


def _unknown(page: str) -> str:
    """The value of `x` in a sum or difference."""
    left, sign, right, _, result = texts(page)[0].split()
    return next(
        str(x)
        for x in range(-2000, 2001)
        if _OPERATIONS[sign](*(x if part == "x" else int(part) for part in (left, right))) == int(result)
    )


def _best_ticket(page: str) -> str:
    prices = [int(price) for price in re.findall(r"button 'Book for \$(\d+)'", page)]
    minutes = [60 * int(h) + int(m) for h, m in re.findall(r"StaticText '(\d+)h (\d+)m'", page)]
    superlative = find_pattern(page, "(cheapest|most expensive|shortest|longest)")
    column = prices if superlative in ("cheapest", "most expensive") else minutes
    best = min(column) if superlative in ("cheapest", "shortest") else max(column)
    if len(minutes) != len(prices):
        raise LookupError("two flights of the same duration")
    return f"Book for ${prices[column.index(best)]}"


def _film(nth: int) -> ExpertStep:
    """Fill the `nth` field with the value for its label."""

    def value(page: str) -> str:
        match = re.search(r"Search for (.+) movies directed by (.+) from year (\d+)", objective(page))
        if match is None:
            raise LookupError(objective(page))
        values = {"Genre": match[1], "Director": match[2], "Year": match[3]}
        return values[[label for text in texts(page) if (label := text.strip(": ")) in values][nth]]

    return _write(value, nth=nth)


EXPERTS: Mapping[str, Sequence[ExpertStep]] = {
    "buy-ticket": [_click("button", _best_ticket)],
    "choose-date-easy": [
        click("textbox"),
        _click("link", lambda page: str(int(find_pattern(page, r"Select \d+/(\d+)/")))),
        SUBMIT,
    ],
    "choose-list": [_choose("Select (.+) from the list"), SUBMIT],
    "click-button": [_click("button", find_quoted)],
    "click-collapsible": [click("tab"), SUBMIT],
    "click-collapsible-nodelay": [click("tab"), SUBMIT],
    "click-dialog": [click("button", "Close")],
    "click-dialog-2": [_click("button", lambda page: find_quoted(page).replace("x", "Close"))],
    "click-option": [_click("radio", lambda page: find_pattern(page, "Select (.+) and click")), SUBMIT],
    "click-tab": [_click("tab", lambda page: find_pattern(page, r"(Tab #\d)"))],
    "click-test": [click("button", "Click Me!")],
    "enter-password": [_write(find_quoted), _write(find_quoted, nth=1), SUBMIT],
    "enter-text": [_write(find_quoted), SUBMIT],
    "enter-text-2": [_write(_upper_or_lower), SUBMIT],
    "enter-text-dynamic": [_write(find_quoted), SUBMIT],
    "find-word": [_write(_word), SUBMIT],
    "focus-text": [click("textbox")],
    "focus-text-2": [_nth_clicked("textbox", r"the (\d+)\w\w input")],
    "form-sequence-2": [
        _nth_clicked("radio", r"the (\d+)\w\w radio"),
        _write(find_quoted, nth=lambda page: _ordinal(page, r"the (\d+)\w\w textbox")),
        SUBMIT,
    ],
    "form-sequence-3": [_choose("Choose (.+) from the"), _click("button", find_quoted)],
    "login-user": [
        _write(find_quoted),
        _write(lambda page: find_quoted(page, 1), nth=1),
        click("button", "Login"),
    ],
    "multi-orderings": [*map(_film, range(3)), click("StaticText", "Submit")],
    "read-table": [_write(lambda page: _value(page, find_pattern(page, "value of (.+) into the"))), SUBMIT],
    "read-table-2": [_write(_label(0)), _write(_label(1), nth=1), SUBMIT],
    "scroll-text": [_write(lambda page: texts(page)[-1].split()[-1].strip(",."), nth=1), SUBMIT],
    "simple-algebra": [_write(_unknown), SUBMIT],
    "simple-arithmetic": [_write(_sum), SUBMIT],
    "unicode-test": [_click("button", find_quoted)],
}
"""Task → its steps."""
