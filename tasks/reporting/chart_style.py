"""The style of a run's plots, and their rendering to files; `charts.py` draws their content.

Every plot is rendered twice: as a PNG that stands alone, and as an SVG that takes its colors and font from
the page (CSS variables, so it follows light and dark mode). The palette is Okabe and Ito's, which is safe for
color-blind readers; no information depends on color alone.
"""

import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, GRAY, LINE = "#1d2733", "#67727f", "#d9dee4"
BANDS = ("#f3f5f7", "#e7ebef")
BEFORE, AFTER, THIRD = "#d55e00", "#0072b2", "#009e73"
PAPER = "#fefefe"
SERIES = (AFTER, BEFORE, THIRD, "#cc79a7", "#e69f00", "#56b4e9")
PARTS = (THIRD, "#e69f00", "#cc79a7", "#56b4e9", GRAY, INK)
"""Colors for parts of a whole, without the two that mean before and after."""
MARKERS = ("o", "s", "^", "D", "v", "P")
VARIABLES = {
    INK: "ink",
    GRAY: "muted",
    LINE: "line",
    BANDS[0]: "band-0",
    BANDS[1]: "band-1",
    PAPER: "paper",
    **{color: f"series-{index}" for index, color in enumerate(SERIES)},
}
"""Color in a plot → the page's CSS variable of the same role."""

_NOT_IN_XML = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "text.parse_math": False,  # environment text may contain a dollar sign
    "font.family": "sans-serif",
    "font.size": 9.5,
    "text.color": INK,
    "axes.edgecolor": GRAY,
    "axes.labelcolor": GRAY,
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
    "xtick.color": GRAY,
    "ytick.color": GRAY,
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
    """One plot, rendered as SVG and PNG."""

    name: str
    """File name without its suffix."""
    alt: str
    """What it shows, in words."""
    svg: str
    """A complete SVG file."""
    png: bytes

    def inline(self) -> str:
        """The SVG for a page: no prolog, unique ids, the page's colors, `alt` as its label."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{self.name}-", body)
        body = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ', r"<svg \1", body, count=1)
        body = re.sub(
            "|".join(VARIABLES),
            lambda match: f"var(--{VARIABLES[match[0].lower()]})",
            body,
            flags=re.IGNORECASE,
        )
        return body.replace("<svg ", f'<svg role="img" aria-label="{_escape_attribute(self.alt)}" ', 1)


def render_plot(
    name: str, draw: Callable[["Axes"], None], *, alt: str, width: float = 5.3, height: float = 2.6
) -> Plot:
    """Render `draw` on a figure of `width` by `height` inches; the same data gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    style: Any = {**_STYLE, "svg.hashsalt": name}
    with rc_context(style):
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure.subplots())
        svg, png = io.StringIO(), io.BytesIO()
        # `savefig` would draw each twice, first without output.
        FigureCanvasSVG(figure).print_svg(svg, metadata={"Date": None, "Creator": None})  # type: ignore[no-untyped-call]
        figure.set_layout_engine("none")  # it stays as it was laid out
        figure.dpi = 150
        FigureCanvasAgg(figure).print_png(png, metadata={"Software": None})  # type: ignore[no-untyped-call]
    return Plot(name=name, alt=alt, svg=svg.getvalue(), png=png.getvalue())


def make_drawable(text: str) -> str:
    """`text` with a mark for each character that XML, and so an SVG, cannot hold, such as controls and lone
    surrogates."""
    return _NOT_IN_XML.sub("\N{REPLACEMENT CHARACTER}", text)


def _escape_attribute(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
