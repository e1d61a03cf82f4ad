"""Scripted solutions of tasks that take the same number of turns each time.

Left out are those whose buttons may lie upon one another, or whose links are words that stand elsewhere, too.

Each step reads what it needs from the observation: the objective says what is asked, the tree where it is.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence

from envs.browser.expert_steps import click, find
from envs.registry import ExpertStep

_OBJECTIVE = re.compile(r"^OBJECTIVE: (.*)$", re.MULTILINE)
_TEXT = re.compile(r"^\t*\[\d+\] (?:StaticText|cell|rowheader|heading) (['\"])(.*?)\1", re.MULTILINE)
_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "x": operator.mul,
}


def objective(seen: str) -> str:
    """What is asked for."""
    match = _OBJECTIVE.search(seen)
    if match is None:
        raise LookupError("no objective in what is seen")
    return match[1]


def find_quoted(seen: str, nth: int = 0) -> str:
    """A text that the objective has in quotes."""
    return str(re.findall(r'"(.*?)"', objective(seen))[nth])


def find_asked(seen: str, pattern: str) -> str:
    """What the first group of a pattern finds in the objective."""
    match = re.search(pattern, objective(seen))
    if match is None:
        raise LookupError(f"the objective is none of the known ones: {objective(seen)}")
    return match[1]


def texts(seen: str) -> list[str]:
    """Texts of the page, in order."""
    return [match[2] for match in _TEXT.finditer(seen)]


def _click(role: str, name: Callable[[str], str]) -> ExpertStep:
    return ExpertStep("", lambda seen: f"click [{find(seen, role, name(seen))}]")


def _write(text: Callable[[str], str], *, nth: int | Callable[[str], int] = 0) -> ExpertStep:
    def action(seen: str) -> str:
        place = nth if isinstance(nth, int) else nth(seen)
        return f"type [{find(seen, 'textbox', nth=place)}] [{text(seen)}] [0]"

    return ExpertStep("", action)


def _ordinal(seen: str, pattern: str) -> int:
    """`3rd` → 2."""
    return int(re.sub(r"\D", "", find_asked(seen, pattern))) - 1


def _nth_clicked(role: str, pattern: str) -> ExpertStep:
    """Click on the one that the objective names by its place."""
    return ExpertStep("", lambda seen: f"click [{find(seen, role, nth=_ordinal(seen, pattern))}]")


SUBMIT = click("button", "Submit")


def _upper_or_lower(seen: str) -> str:
    return find_quoted(seen).upper() if "upper case" in objective(seen) else find_quoted(seen).lower()


def _word(seen: str) -> str:
    return texts(seen)[0].split()[_ordinal(seen, r"the (\d+)\w\w word")].strip(",.")


def _value(seen: str, label: str) -> str:
    lines = texts(seen)
    return lines[lines.index(label) + 1]


def _label(nth: int) -> Callable[[str], str]:
    """The value that belongs to the label of the `nth` field, which stands after the table."""
    return lambda seen: _value(
        seen, [text for text in texts(seen) if text.endswith(":")][nth].removesuffix(":")
    )


def _sum(seen: str) -> str:
    left, sign, right = texts(seen)[0].removesuffix("=").split()
    return str(_OPERATIONS[sign](int(left), int(right)))


def _unknown(seen: str) -> str:
    """The number that the one `x` of a sum or difference stands for."""
    left, sign, right, _, result = texts(seen)[0].split()
    return next(
        str(x)
        for x in range(-2000, 2001)
        if _OPERATIONS[sign](*(x if part == "x" else int(part) for part in (left, right))) == int(result)
    )


def _best_ticket(seen: str) -> str:
    prices = [int(price) for price in re.findall(r"button 'Book for \$(\d+)'", seen)]
    minutes = [60 * int(h) + int(m) for h, m in re.findall(r"StaticText '(\d+)h (\d+)m'", seen)]
    superlative = find_asked(seen, "(cheapest|most expensive|shortest|longest)")
    column = prices if superlative in ("cheapest", "most expensive") else minutes
    best = min(column) if superlative in ("cheapest", "shortest") else max(column)
    if len(minutes) != len(prices):
        raise LookupError("two flights of the same duration")
    return f"Book for ${prices[column.index(best)]}"


def _film(nth: int) -> ExpertStep:
    """What belongs into the `nth` field, by the labels in their order."""

    def value(seen: str) -> str:
        match = re.search(r"Search for (.+) movies directed by (.+) from year (\d+)", objective(seen))
        if match is None:
            raise LookupError(objective(seen))
        values = {"Genre": match[1], "Director": match[2], "Year": match[3]}
        return values[[label for text in texts(seen) if (label := text.strip(": ")) in values][nth]]

    return _write(value, nth=nth)


def _day(seen: str) -> str:
    return str(int(find_asked(seen, r"Select \d+/(\d+)/")))


def _last_word(seen: str) -> str:
    return texts(seen)[-1].split()[-1].strip(",.")


EXPERTS: Mapping[str, Sequence[ExpertStep]] = {
    "buy-ticket": [_click("button", _best_ticket)],
    "choose-date-easy": [click("textbox"), _click("link", _day), SUBMIT],
    "choose-list": [
        ExpertStep(
            "",
            lambda seen: (
                f"type [{find(seen, 'combobox')}] [{find_asked(seen, 'Select (.+) from the list')}] [0]"
            ),
        ),
        SUBMIT,
    ],
    "click-button": [_click("button", find_quoted)],
    "click-collapsible": [click("tab"), SUBMIT],
    "click-collapsible-nodelay": [click("tab"), SUBMIT],
    "click-dialog": [click("button", "Close")],
    "click-dialog-2": [_click("button", lambda seen: find_quoted(seen).replace("x", "Close"))],
    "click-option": [_click("radio", lambda seen: find_asked(seen, "Select (.+) and click")), SUBMIT],
    "click-tab": [_click("tab", lambda seen: find_asked(seen, r"(Tab #\d)"))],
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
        _write(find_quoted, nth=lambda seen: _ordinal(seen, r"the (\d+)\w\w textbox")),
        SUBMIT,
    ],
    "form-sequence-3": [
        ExpertStep(
            "",
            lambda seen: f"type [{find(seen, 'combobox')}] [{find_asked(seen, 'Choose (.+) from the')}] [0]",
        ),
        _click("button", find_quoted),
    ],
    "login-user": [
        _write(find_quoted),
        _write(lambda seen: find_quoted(seen, 1), nth=1),
        click("button", "Login"),
    ],
    "multi-orderings": [*map(_film, range(3)), click("StaticText", "Submit")],
    "read-table": [
        _write(lambda seen: _value(seen, find_asked(seen, "value of (.+) into the"))),
        SUBMIT,
    ],
    "read-table-2": [_write(_label(0)), _write(_label(1), nth=1), SUBMIT],
    "scroll-text": [_write(_last_word, nth=1), SUBMIT],
    "simple-algebra": [_write(_unknown), SUBMIT],
    "simple-arithmetic": [_write(_sum), SUBMIT],
    "unicode-test": [_click("button", find_quoted)],
}
"""Task → its steps."""
