"""Rendering of HTML pages: templates, number formats, and the folder of a page with its plots.

The templates are in `templates/`; the callers, `tasks/stages/report.py` and `comparison/compare.py`, provide
their data.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean

from envs.files import write_atomically
from envs.types import replace_surrogates
from tasks.reporting.chart_style import Plot

PAGES = Path(__file__).parent / "templates"
DASH = "\N{EN DASH}"


def render_page(template: str, **facts: object) -> str:
    """Render a template of `templates/` with `facts`; everything except the plots is escaped."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(PAGES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(FILTERS)
    return environment.get_template(template).render(**facts)


def write_page(folder: Path, *, page: str, plots: Sequence[Plot], possible_plots: Sequence[str]) -> Path:
    """Write `index.html` and `plots` into `folder`, replacing an earlier page; returns its path.

    `possible_plots`: patterns of the names that plots of such a page may have; an earlier page's files of
    these names are removed, and no others. The page has a question mark for a lone surrogate, as recorded
    texts of an endpoint may have.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in possible_plots:
        for old in [*folder.glob(f"{name}.svg"), *folder.glob(f"{name}.png")]:
            old.unlink()
    for plot in plots:
        (folder / f"{plot.name}.svg").write_text(plot.svg)
        (folder / f"{plot.name}.png").write_bytes(plot.png)
    path = folder / "index.html"
    write_atomically(path, replace_surrogates(page, by="?"))
    return path


def markdown(header: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    """A Markdown table; its first two columns to the left, numbers to the right. A cell is one line."""
    rule = ["---", "---", *("---:" for _ in header[2:])]
    rows = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in [header, rule, *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def percent(rate: float | None, *, digits: int = 1) -> str:
    """`41.3%`, or a dash for None."""
    return DASH if rate is None else f"{100 * rate:.{digits}f}%"


def points(gain: float | None) -> str:
    """Percentage points with their sign, `+4.0`; `0.0` for no change, a dash for None."""
    if gain is None:
        return DASH
    text = f"{100 * gain:+.1f}"
    return "0.0" if text[1:] == "0.0" else text.replace("-", "\N{MINUS SIGN}")


def logprob(value: float) -> str:
    """`−0.58`; `0.00`, without a sign, for what rounds to it."""
    return f"{value:z.2f}".replace("-", "\N{MINUS SIGN}")


def format_p(p_value: float) -> str:
    """`0.0312`, or `< 0.0001`."""
    return f"{p_value:.4f}" if p_value >= 0.0001 else "< 0.0001"


def duration(seconds: float) -> str:
    """`8.4 s`, `4 min 12 s`, `2 h 05 min`."""
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def gigabytes(number: float) -> str:
    """`5.89 GB`, of bytes."""
    return f"{number / 1e9:.2f} GB"


def seconds(value: float) -> str:
    """`1.25 s`, `3 ms`, `40 µs`: the duration of one turn."""
    if value >= 0.1:
        return f"{value:.2f} s"
    return f"{1e3 * value:.0f} ms" if value >= 0.001 else f"{1e6 * value:.0f} \N{MICRO SIGN}s"


def format_count(number: float, noun: str) -> str:
    """`1 sample`, `4 samples`, `1,250 samples`."""
    return f"{number:,.0f} {noun}" + ("" if number == 1 else "s")


def format_value(value: object) -> str:
    """A parameter's value; a dash for None."""
    if value is None:
        return DASH
    return value if isinstance(value, str) else json.dumps(value)


FILTERS: Mapping[str, Callable[..., object]] = {
    "mean": fmean,
    "percent": percent,
    "points": points,
    "logprob": logprob,
    "format_p": format_p,
    "duration": duration,
    "gigabytes": gigabytes,
    "count": lambda number: f"{number:,.0f}",
    "format_count": format_count,
    "seconds": seconds,
    "format_value": format_value,
}
"""The numbers of the templates, and their formats."""
