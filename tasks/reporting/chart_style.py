"""How pictures of a run look, and how they become files; what they draw is `tasks/reporting/charts.py`'s.

Every plot is made twice: a PNG that stands alone, and an SVG whose colours and font are those of the
page around it (CSS variables, so that it follows light and dark). The colours are Okabe and Ito's,
which colour-blind readers tell apart; no fact rests on colour alone.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, LINE = "#1d2733", "#67727f", "#d9dee4"
BANDS = ("#f3f5f7", "#e7ebef")
BEFORE, AFTER, THIRD = "#d55e00", "#0072b2", "#009e73"
PAPER = "#fefefe"
SERIES = (AFTER, BEFORE, THIRD, "#cc79a7", "#e69f00", "#56b4e9")
PARTS = (THIRD, "#e69f00", "#cc79a7", "#56b4e9", MUTED)
"""Parts of a whole; without the two colours that mean before and after."""
MARKERS = ("o", "s", "^", "D", "v", "P")
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    LINE: "line",
    BANDS[0]: "band-0",
    BANDS[1]: "band-1",
    PAPER: "paper",
    **{colour: f"series-{index}" for index, colour in enumerate(SERIES)},
}
"""Colour in a plot → the page's CSS variable of the same role."""

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # an environment's words may hold a dollar sign
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": MUTED,
    "axes.linewidth": 0.8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "axes.titlelocation": "left",
    "axes.titlesize": 10,
    "axes.titlepad": 8,
    "grid.color": LINE,
    "grid.linewidth": 0.7,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "xtick.major.size": 3,
    "ytick.major.size": 0,
    "figure.facecolor": PAPER,
    "axes.facecolor": "none",
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "legend.handlelength": 1.2,
    "legend.columnspacing": 1.1,
    "legend.handletextpad": 0.5,
    "lines.solid_capstyle": "round",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """One picture in both forms."""

    name: str
    """File name without its suffix."""
    alt: str
    """What it shows, in words."""
    svg: str
    """A file of its own."""
    png: bytes

    def inline(self) -> str:
        """The SVG for a page: no prolog, ids of its own, the page's colours, `alt` as its label."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{self.name}-", body)
        body = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ', r"<svg \1", body, count=1)
        body = re.sub(
            "|".join(VARIABLES),
            lambda found: f"var(--{VARIABLES[found[0].lower()]})",
            body,
            flags=re.IGNORECASE,
        )
        return body.replace("<svg ", f'<svg role="img" aria-label="{_quoted(self.alt)}" ', 1)


def draw(
    name: str, paint: Callable[["Axes"], None], *, alt: str, width: float = 5.3, height: float = 2.6
) -> Plot:
    """Let `paint` draw on the axes of a figure of `width` by `height` inches; same numbers, same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure.subplots())
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.set_layout_engine("none")  # it stays as it was laid out
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Plot(name=name, alt=alt, svg=svg.getvalue(), png=png.getvalue())


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
