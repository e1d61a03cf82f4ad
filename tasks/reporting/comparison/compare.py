"""`wingspan compare`: finished runs, or evaluations, against the first of them, as text and as a page."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from envs.errors import ConfigError, DamagedFile, suggest
from envs.files import check_writable, read_path, write_atomically
from envs.types import replace_surrogates
from tasks.evaluation.record import is_record
from tasks.reporting.chart_style import Plot
from tasks.reporting.comparison import evaluations, runs, tables
from tasks.reporting.comparison.curves import MIN_SEEDS, PLOTS, evaluation_plots, training_plots
from tasks.reporting.comparison.runs import FinishedRun, UnfinishedRun
from tasks.reporting.comparison.scores import Difference, compare_with
from tasks.reporting.comparison.sides import SUCCESS, ComparedItem, Side, find_folders
from tasks.reporting.comparison.tables import Table
from tasks.reporting.links import view_command
from tasks.reporting.pages import markdown, render_page, write_page
from tasks.runs.folders import RECORD, RunFolder

MAX_SENTENCES = 3
"""Results that are also written as sentences."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plots:
    """Plots with their heading and an explanation."""

    title: str
    about: str
    plots: Sequence[Plot]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison as it is displayed."""

    names: Sequence[str]
    """The names of the sides; the others are compared with the first."""
    results: Sequence[str]
    """The main results of the first `MAX_SENTENCES` other sides, in sentences."""
    notes: Sequence[str]
    """What a reader must know before the numbers are compared, in sentences."""
    sections: Sequence[Plots | Table]
    view_command: str
    """The command that starts the viewer to which the page links."""

    @property
    def tables(self) -> list[Table]:
        """The tables in the order of the page."""
        return [section for section in self.sections if isinstance(section, Table)]


def compare(paths: Sequence[Path], out: Path, *, reference: str | None = None) -> tuple[Comparison, Path]:
    """Compare the runs or evaluations in `paths`; write `index.html`, `compare.md` and the plots to `out`.

    `reference`: the name of the side that the others are compared with, by default the first. Returns the
    comparison and the page's path. An unfinished or damaged run in a folder of runs is left out, with a note.
    Raises `ConfigError` for what cannot be compared, and for an `out` that cannot be written to.
    """
    out = read_path(out)
    paths = [path.parent if path.name == RECORD and path.is_file() else path for path in paths]
    folders = find_folders(paths)
    are_records = [is_record(folder.folder) for folder in folders]
    if any(are_records) and not all(are_records):
        other_folder = folders[are_records.index(False)].folder
        raise ConfigError(f"{other_folder} is no evaluation, and others are; compare evaluations, or runs")
    check_writable(out, remedy="choose another --out")
    command = view_command(paths)
    if all(are_records):
        comparison = _compare_evaluations(folders, reference=reference, command=command)
    else:
        named_folders = {path.resolve() for path in paths}
        finished_runs, notes = _read_finished(folders, named_folders=named_folders)
        comparison = _compare_runs(finished_runs, notes=notes, reference=reference, command=command)
    page = render_page("compare.html", comparison=comparison)
    plots = [plot for part in comparison.sections if isinstance(part, Plots) for plot in part.plots]
    path = write_page(out, page=page, plots=plots, possible_plots=PLOTS)
    write_atomically(out / "compare.md", replace_surrogates(_as_markdown(comparison), by="?"))
    return comparison, path


def _read_finished(
    folders: Sequence[RunFolder], *, named_folders: Collection[Path]
) -> tuple[list[FinishedRun], list[str]]:
    """The finished runs of `folders`, at least one, and a note for each run that is left out.

    Raises `UnfinishedRun` or `DamagedFile` for one that the user has named, and if no run can be compared.
    """
    finished_runs: list[FinishedRun] = []
    left_out: dict[str, UnfinishedRun | DamagedFile] = {}
    for folder in folders:
        try:
            finished_runs.append(runs.read_run(folder.folder, name=folder.name))
        except (UnfinishedRun, DamagedFile) as error:
            if folder.folder.resolve() in named_folders:
                raise
            left_out[folder.name] = error
    if not finished_runs:
        raise next(iter(left_out.values()))
    notes = [
        f"{name} is not finished and is left out."
        if isinstance(error, UnfinishedRun)
        else f"{name} is left out: {error}."
        for name, error in left_out.items()
    ]
    return finished_runs, notes


def _compare_runs(
    finished_runs: Sequence[FinishedRun], *, notes: Sequence[str], reference: str | None, command: str
) -> Comparison:
    runs.check_comparable(finished_runs)
    settings = runs.group_by_seed(finished_runs)
    sides = _order([runs.side_of(name, members) for name, members in settings.items()], reference)
    items = [ComparedItem(item, values.metadata) for item, values in finished_runs[0].items.items()]
    curves = Plots(
        title="Success on the test split",
        about="Diamonds are evaluations of all test items, before and after training. Curves are of the "
        f"quick evaluations after each round, of some of these items.{_explain_seeds(settings)}",
        plots=evaluation_plots(settings),
    )
    training = Plots(
        title="Success of the training episodes",
        about="Moving averages. Training items, under the horizon of their step, which may differ between "
        "settings.",
        plots=training_plots(settings),
    )
    differences = compare_with(sides[0], sides[1:])
    return Comparison(
        names=[side.name for side in sides],
        results=_summaries(sides, differences),
        notes=[*notes, *runs.notes_on(finished_runs), *_notes_on_failures(sides, items)],
        sections=[
            curves,
            *_compare_sides(sides, items, differences),
            *([training] if training.plots else []),
            tables.cost_table(sides),
            tables.run_table(settings),
            tables.difference_table(sides, subject="parameter"),
        ],
        view_command=command,
    )


def _explain_seeds(settings: Mapping[str, Sequence[FinishedRun]]) -> str:
    """What the curves of settings with several seeds show, in sentences."""
    counts = {len(members) for members in settings.values()} - {1}
    if not counts:
        return ""
    text = (
        " Runs that differ only by seed are one setting: their curves are faint, and the strong line is "
        "their mean, as far as every seed has come."
    )
    if max(counts) >= MIN_SEEDS:
        text += " The shade is its 95% interval over seeds (Student's t)."
    if min(counts) < MIN_SEEDS:
        text += " The mean of two seeds is drawn without an interval, which would be too wide to read."
    return text


def _compare_evaluations(folders: Sequence[RunFolder], *, reference: str | None, command: str) -> Comparison:
    results = [evaluations.read_evaluation(folder) for folder in folders]
    records = {folder.folder: record for folder, (record, _) in zip(folders, results, strict=True)}
    evaluations.check_comparable(records)
    sides = _order([side for _, side in results], reference)
    items = evaluations.compared_items(results[0][0])
    differences = compare_with(sides[0], sides[1:])
    return Comparison(
        names=[side.name for side in sides],
        results=_summaries(sides, differences),
        notes=_notes_on_failures(sides, items),
        sections=[
            *_compare_sides(sides, items, differences),
            tables.cost_table(sides),
            tables.difference_table(sides, subject="setting"),
        ],
        view_command=command,
    )


def _order(sides: Sequence[Side], reference: str | None) -> list[Side]:
    """The sides with the reference first. Raises `ConfigError` for a name that no side has."""
    names = [side.name for side in sides]
    if reference is not None and reference not in names:
        hint = suggest(reference, names)
        raise ConfigError(
            f"--reference {reference}: no side has this name; {hint}they are {', '.join(names)}"
        )
    return sorted(sides, key=lambda side: side.name != reference) if reference else list(sides)


def _summaries(sides: Sequence[Side], differences: Sequence[Difference]) -> list[str]:
    """Raises `ConfigError` for a side that has no item in common with the first."""
    main = {difference.side: difference for difference in differences if difference.measure == SUCCESS}
    reference, *other_names = (side.name for side in sides)
    for name in other_names:
        if name not in main:
            raise ConfigError(f"{reference} and {name} have no item with outcomes in both; evaluate again")
    return [
        tables.summarise(difference, reference=reference, num_others=len(other_names))
        for difference in [*main.values()][:MAX_SENTENCES]
    ]


def _compare_sides(
    sides: Sequence[Side], items: Sequence[ComparedItem], differences: Sequence[Difference]
) -> list[Table]:
    compared = [tables.score_table(sides)]
    if differences:
        compared.append(tables.paired_table(differences, reference=sides[0].name))
    compared += [*tables.group_tables(sides, items), *tables.only_tables(sides, items)]
    if any(side.stops for side in sides):
        compared.append(tables.stop_table(sides))
    return compared


def _notes_on_failures(sides: Sequence[Side], items: Sequence[ComparedItem]) -> list[str]:
    missing_items = {
        side.name: sum(not samples.get(item.item) for item in items)
        for side in sides
        for samples in [next(iter(side.samples.values()))]
    }
    return [
        f"{name} has no outcome for {count} of {len(items)} items: every episode of them failed. They are in "
        "no test."
        for name, count in missing_items.items()
        if count
    ]


def _as_markdown(comparison: Comparison) -> str:
    parts = [f"{note}\n" for note in comparison.notes]
    for table in comparison.tables:
        parts.append(f"## {table.title}\n")
        parts += [f"{table.about}\n"] if table.about else []
        parts += [markdown(table.header, [[str(cell) for cell in row] for row in table.rows])]
    return "\n".join(parts)
