"""Pictures of a run, drawn with matplotlib from plain numbers.

Every plot is made twice: a PNG that stands alone, and an SVG whose colours and font are those of the
page around it (CSS variables, so that it follows light and dark). The colours are Okabe and Ito's,
which colour-blind readers tell apart; no fact rests on colour alone.
"""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tasks.intervals import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INK, MUTED, LINE = "#1d2733", "#67727f", "#d9dee4"
BANDS = ("#f3f5f7", "#e7ebef")
BEFORE, AFTER, THIRD = "#d55e00", "#0072b2", "#009e73"
PAPER = "#fefefe"
SERIES = (AFTER, BEFORE, THIRD, "#cc79a7", "#e69f00", "#56b4e9")
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
        """The SVG to be put into a page: no prolog, ids of its own, the page's colours, `alt` as its title."""
        body = self.svg[self.svg.index("<svg") :]
        body = re.sub(r"<metadata>.*?</metadata>", "", body, flags=re.DOTALL)
        body = re.sub(r'\bid="', f'id="{self.name}-', body)
        body = re.sub(r'(url\(#|xlink:href="#)', rf"\g<1>{self.name}-", body)
        body = re.sub(r'<svg ([^>]*?)width="[^"]*" height="[^"]*"|<svg ', r"<svg \1", body, count=1)
        body = re.sub(
            "|".join(VARIABLES), lambda found: f"var(--{VARIABLES[found[0].lower()]})", body, flags=re.IGNORECASE
        )
        return body.replace("<svg ", f'<svg role="img" aria-label="{_quoted(self.alt)}" ', 1)


def draw(
    name: str, paint: Callable[["Axes"], None], *, alt: str, width: float = 4.8, height: float = 2.5
) -> Plot:
    """Let `paint` draw on the axes of a figure of `width` by `height` inches; same numbers, same bytes."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({**_STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(width, height), layout="constrained")
        paint(figure.subplots())
        svg, png = io.StringIO(), io.BytesIO()
        figure.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
        figure.savefig(png, format="png", dpi=150, metadata={"Software": None})
    return Plot(name=name, alt=alt, svg=svg.getvalue(), png=png.getvalue())


def success_over_steps(
    *,
    training: Sequence[tuple[float, float]],
    quick: Sequence[tuple[float, float, int]],
    before: float | None,
    after: float | None,
    stages: Sequence[tuple[int, int, int]],
    narrow: bool = False,
) -> Callable[["Axes"], None]:
    """Success against training steps.

    `training`: (step, rate) of the training episodes; `quick`: (step, rate, items) of the evaluation
    after each round; `before`, `after`: the final evaluation; `stages`: (first step, last step, turns);
    `narrow`: the legend takes two rows.
    """

    def paint(axes: "Axes") -> None:
        last = stages[-1][1]
        paint_stages(axes, stages=stages)
        if training:
            axes.plot(*zip(*training, strict=True), color=MUTED, linewidth=1.2, label="training episodes")
        if quick:
            points = [(step, rate) for step, rate, _ in quick]
            spans = [wilson(rate, n=items) for _, rate, items in quick]
            axes.vlines(
                [step for step, _ in points], *zip(*spans, strict=True), color=THIRD, linewidth=1, alpha=0.6
            )
            axes.plot(
                *zip(*points, strict=True), "o", color=THIRD, markersize=5.5, label="quick evaluation", zorder=3
            )
        for rate, step, colour, label in (
            (before, 0, BEFORE, "test split, before"),
            (after, last + 0.5, AFTER, "test split, after"),
        ):
            if rate is None:
                continue
            face = PAPER if step == 0 else colour
            axes.plot(
                [step], [rate], "D", color=colour, mfc=face, mew=1.6, ms=7, label=label, zorder=4, clip_on=False
            )
            axes.annotate(
                f"{rate:.0%}",
                (step, rate),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                color=colour,
                fontweight="bold",
                annotation_clip=False,
            )
        axes.set_xlim(0, last + 0.5)
        percent_axis(axes, label="success")
        axes.set_xlabel("training step")
        whole_steps(axes)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2 if narrow else 4)

    return paint


def paired_bars(
    *, labels: Sequence[str], before: Sequence[float | None], after: Sequence[float | None], items: Sequence[int]
) -> Callable[["Axes"], None]:
    """Success before and after, side by side for each group, with 95% intervals over `items`."""

    def paint(axes: "Axes") -> None:
        for rates, colour, label, shift in ((before, BEFORE, "before", -0.2), (after, AFTER, "after", 0.2)):
            for index, rate in enumerate(rates):
                if rate is None:
                    continue
                at = index + shift
                hatch = "////" if label == "before" else None
                axes.bar(
                    at,
                    rate,
                    width=0.36,
                    color=PAPER if hatch else colour,
                    edgecolor=colour,
                    linewidth=1,
                    hatch=hatch,
                    label=label if index == 0 else None,
                )
                low, high = wilson(rate, n=items[index])
                axes.vlines(at, low, high, color=INK, linewidth=1)
                axes.text(at, high + 0.02, f"{rate:.0%}", ha="center", va="bottom", fontsize=8.5)
        axes.set_xticks(range(len(labels)), labels)
        axes.tick_params(axis="x", length=0, colors=INK)
        percent_axis(axes, label="success", top=1.12)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.01, 1.0), ncols=2)

    return paint


def line_over_steps(
    values: Sequence[tuple[float, float]],
    *,
    label: str,
    stages: Sequence[tuple[int, int, int]],
    percent: bool = False,
    ceiling: bool = False,
) -> Callable[["Axes"], None]:
    """One series of (step, value); `ceiling` draws the horizon above it."""

    def paint(axes: "Axes") -> None:
        paint_stages(axes, stages=stages, named=not ceiling)
        axes.plot(*zip(*values, strict=True), color=AFTER, linewidth=1.6)
        if ceiling:
            for first, last, turns in stages:
                axes.hlines(turns, first - 0.5, last + 0.5, color=INK, linewidth=1)
            first, _, turns = stages[0]
            axes.annotate(
                "horizon", (first - 0.5, turns), xytext=(3, 3), textcoords="offset points", fontsize=8.5
            )
        axes.set_xlim(0.5, stages[-1][1] + 0.5)
        if percent:
            percent_axis(axes, label=label)
        else:
            axes.set_ylim(0, 1.12 * max([value for _, value in values] + [t for *_, t in stages if ceiling]))
            axes.set_ylabel(label)
        axes.set_xlabel("training step")
        whole_steps(axes)

    return paint


def stacked_over_steps(
    series: Mapping[str, Sequence[float]], *, steps: Sequence[int], label: str, percent: bool = False
) -> Callable[["Axes"], None]:
    """Parts of a whole at each of `steps`, as stacked bars; each part named where it is thickest."""

    def paint(axes: "Axes") -> None:
        floor = [0.0] * len(steps)
        for index, (name, values) in enumerate(series.items()):
            axes.bar(
                steps,
                values,
                bottom=floor,
                width=1.0 if len(steps) > 60 else 0.9,
                color=SERIES[index % len(SERIES)],
                linewidth=0,
                label=name,
            )
            floor = [low + value for low, value in zip(floor, values, strict=True)]
        axes.set_xlim(min(steps) - 0.5, max(steps) + 0.5)
        if percent:
            percent_axis(axes, label=label, top=1.0)
        else:
            axes.set_ylabel(label)
        axes.set_xlabel("training step")
        whole_steps(axes)
        axes.legend(
            loc="lower left",
            bbox_to_anchor=(-0.02, 1.0),
            ncols=len(series),
            handlelength=0.8,
        )

    return paint


def paint_stages(axes: "Axes", *, stages: Sequence[tuple[int, int, int]], named: bool = True) -> None:
    """The horizon's stages as bands, each with its turns where there is room for the words."""
    from matplotlib.transforms import blended_transform_factory

    across = blended_transform_factory(axes.transData, axes.transAxes)
    last = stages[-1][1]
    for index, (first, end, turns) in enumerate(stages):
        left = 0.0 if first == 1 else first - 0.5
        axes.axvspan(left, end + 0.5, color=BANDS[index % 2], linewidth=0, zorder=0)
        if named and (end - first + 1) / last > 0.08:
            middle = (left + end + 0.5) / 2
            axes.text(
                middle, 0.985, f"{turns} turns", transform=across, ha="center", va="top", color=MUTED, fontsize=8.5
            )


def percent_axis(axes: "Axes", *, label: str, top: float = 1.05) -> None:
    """A vertical axis of shares, in percent."""
    from matplotlib.ticker import PercentFormatter

    axes.set_ylim(0, top)
    axes.set_yticks([0, 0.25, 0.5, 0.75, 1])
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_ylabel(label)


def whole_steps(axes: "Axes") -> None:
    """Ticks at whole steps only."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))


def _quoted(text: str) -> str:
    return text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
