"""A Markdown page of results: prose by hand, and blocks between marks that are made of kept results alone.

    <!-- summary -->                                                  one line per experiment of the page
    <!-- overview: fair-nuclei, fair-prostate; variations: a | b -->  a column per experiment, a line per row
    <!-- table: table-histology; figures: sites, convergence -->      an experiment's table, tests, figures and command
    <!-- flatness: ablation-histology -->                             what `harmofl landscape` measured of its cells
    <!-- epsilon: privacy-histology -->                               an experiment's scores against the ε of its runs
    …
    <!-- end -->

What stands between a mark and its end is replaced; everything else is left as it is.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field, replace
from pathlib import Path

from harmofl import registry
from harmofl.errors import UsageError, unknown_name
from harmofl.experiments.cells import Cell, read_experiment
from harmofl.experiments.kept import Kept, images_of
from harmofl.experiments.kept_blocks import END, Block, read_blocks
from harmofl.experiments.kept_epsilon import epsilon_table
from harmofl.experiments.kept_figures import Drawing, drawings_of
from harmofl.experiments.kept_overview import overview_table
from harmofl.experiments.kept_summary import summary_table
from harmofl.experiments.notes import training_note
from harmofl.experiments.plan import Paper, read_plan
from harmofl.experiments.results import Results, gather
from harmofl.experiments.writing import paper_table, results_table
from harmofl.reporting import comparisons
from harmofl.reporting.landscape_table import FILE as LANDSCAPE
from harmofl.reporting.landscape_table import flatness_table
from harmofl.reporting.table_formats import markdown_escape, to_markdown
from harmofl.reporting.words import join_words
from harmofl.settings import flatten

OF_TILES = "-tiles"
"""Ends the names of experiments on some of the paper's images; the paper's numbers are in the plan without it."""


@dataclass
class KeptPage:
    """A page, the plans of its experiments and what is kept of them."""

    page: Path
    plans: Path
    kept: Path
    data: str
    """The folder of images for tasks without synthetic hospitals. It is never opened: a clone has no images."""
    _results: dict[str, Results] = field(default_factory=dict)
    _drawn: dict[Block, list[Drawing]] = field(default_factory=dict)
    _store: Kept | None = None

    def text(self) -> str:
        """The page with every block as it should be now."""
        parts = []
        for block, between in read_blocks(self.page.read_text(encoding="utf-8")):
            parts.append(between)
            if block:
                parts += [block.mark, "\n", self._content(block), END]
        return "".join(parts)

    def drawings(self) -> list[Drawing]:
        """Every figure that the page shows."""
        return [drawing for block in self._blocks() for drawing in self._drawings(block)]

    def stale(self) -> list[str]:
        """What is no longer up to date, in words."""
        found = [f"{self.page}: its tables"] if self.text() != self.page.read_text(encoding="utf-8") else []
        found += [f"{self._path(drawing)}" for drawing in self.drawings() if not drawing.is_fresh(self._path(drawing))]
        return found + [f"{path}: no block shows it" for path in self._unused_figures()]

    def write(self, redraw: bool = False) -> list[Path]:
        """Bring page and figures up to date; return what was written or removed."""
        before, text = self.page.read_text(encoding="utf-8"), self.text()
        changed = [self.page] if text != before else []
        self.page.write_text(text, encoding="utf-8")
        for drawing in self.drawings():
            path = self._path(drawing)
            if redraw or not drawing.is_fresh(path):
                drawing.write(path)
                changed.append(path)
        for path in self._unused_figures():
            path.unlink()
            changed.append(path)
        return changed

    def results(self, name: str) -> Results:
        """Gather what is kept of an experiment."""
        self._store = self._store or Kept(self.kept)
        if name not in self._results:
            path = self.plans / f"{name}.toml"
            if not path.exists():
                raise unknown_name("experiment", name, [plan.stem for plan in sorted(self.plans.glob("*.toml"))])
            needs_folder = registry.tasks.find(read_plan(path).task).phantom is None
            experiment = read_experiment(path, self.data if needs_folder else None)
            self._results[name] = gather(experiment, kept=self._store)
            _check_same_images(self._results[name])
        return self._results[name]

    def _blocks(self) -> list[Block]:
        return [block for block, _ in read_blocks(self.page.read_text(encoding="utf-8")) if block]

    @property
    def _figures(self) -> str:
        """The folder of the page's figures, as seen from the page: each page has its own."""
        return f"figures/{self.page.stem}"

    def _path(self, drawing: Drawing) -> Path:
        return self.page.parent / self._figures / drawing.file

    def _unused_figures(self) -> list[Path]:
        """Figures that the page no longer shows."""
        shown = {self._path(drawing) for drawing in self.drawings()}
        return sorted(set((self.page.parent / self._figures).glob("*.png")) - shown)

    # ---- what a block holds ----

    def _content(self, block: Block) -> str:
        makers = {
            "summary": self._summary,
            "overview": self._overview,
            "table": self._table,
            "flatness": self._flatness,
            "epsilon": self._epsilon,
        }
        return makers[block.kind](block)

    def _summary(self, _: Block) -> str:
        tables = [other for other in self._blocks() if other.kind == "table"]
        return summary_table([(other, self.results(other.name)) for other in tables])

    def _overview(self, block: Block) -> str:
        return overview_table([self.results(name.strip()) for name in block.name.split(",")], block.variations)

    def _drawings(self, block: Block) -> list[Drawing]:
        if block not in self._drawn:
            done = without_missing(self.results(block.name)) if block.figures else None
            self._drawn[block] = drawings_of(done, block.figures, self.kept / block.name) if done else []
        return self._drawn[block]

    def _table(self, block: Block) -> str:
        results = self.results(block.name)
        done = without_missing(results)
        pictures = [
            f"![{drawing.caption}]({self._figures}/{drawing.file})\n\n{drawing.explanation}"
            for drawing in self._drawings(block)
        ]
        parts = [
            state_line(results),
            *([_scores(done), comparisons.to_markdown(done.comparisons())] if done.runs else []),
            *pictures,
            self._paper(block.name),
            f"{settings_line(results)}\n\n```\n{self._command(block.name)}\n```",
        ]
        return "\n\n".join(part.strip() for part in parts if part) + "\n"

    def _flatness(self, block: Block) -> str:
        files = sorted((self.kept / block.name).glob(f"landscape-seed-*/{LANDSCAPE}"))
        if not files:
            raise UsageError(f"{block.mark}: there is no landscape-seed-…/{LANDSCAPE} in {self.kept / block.name}")
        return to_markdown(flatness_table(files))

    def _epsilon(self, block: Block) -> str:
        results = self.results(block.name)
        scores = epsilon_table(without_missing(results)) if results.runs else ""
        command = f"{settings_line(results)}\n\n```\n{self._command(block.name)}\n```"
        return "\n\n".join(part.strip() for part in (state_line(results), scores, command) if part) + "\n"

    def _paper(self, name: str) -> str:
        """The paper's own numbers for the same task, and how they differ from ours."""
        sibling = self.plans / f"{name.removesuffix(OF_TILES)}.toml"
        paper: Paper | None = read_plan(sibling).paper if sibling.exists() else None
        if paper is None:
            return ""
        other = "on its own images, the whole of these public sets" if name.endswith(OF_TILES) else "on real images"
        note = f"Measured by the paper's authors {other}, with larger networks and more rounds: not our numbers."
        return f"{to_markdown(paper_table(paper))}{note}"

    def _command(self, name: str) -> str:
        experiment = self.results(name).experiment
        data = ["--data", self.data] if experiment.data else []
        plan = f"{self.plans.name}/{name}.toml"
        return shlex.join(
            ["harmofl", "experiment", plan, *data, "--keep", self.kept.name, "--out", f"runs/{name}"],
        )


def _check_same_images(results: Results) -> None:
    """Raise an error for cells of different images in one table: a plan without its folder matches them all."""
    experiment, runs = results.experiment, results.runs.values()
    if experiment.data and not experiment.plan.hold_out and len({images_of(run.facts) for run in runs}) > 1:
        names = ", ".join(str(run.folder) for run in runs)
        raise UsageError(f"{experiment.name}: kept results of different images in one table: {names}")


def without_missing(results: Results) -> Results:
    """The results without the missing cells, which the page lists in its own words."""
    cells = tuple(cell for cell in results.experiment.cells if cell.path in results.runs)
    return replace(results, experiment=replace(results.experiment, cells=cells))


def state_line(results: Results) -> str:
    """Whether the experiment is complete, or which cells are missing."""
    missing, total = results.missing, len(results.experiment.cells)
    if not missing:
        return f"*Complete: {total} of {total} cells.*"
    if len(missing) == total:
        return f"*Not started: all {total} cells are still missing.*"
    verb = "cells is" if len(missing) == 1 else "cells are"
    return f"*{len(missing)} of {total} {verb} still missing: {_missing(results)}.*"


def _missing(results: Results) -> str:
    """The missing cells: rows of which nothing is done by their names, then lines that lack the same seeds together."""
    begun = {cell.row for cell in results.experiment.cells if cell.path in results.runs}
    untouched = dict.fromkeys(markdown_escape(cell.row) for cell in results.missing if cell.row not in begun)
    lines: dict[str, list[int]] = {}
    for cell in results.missing:
        if cell.row in begun:
            lines.setdefault(_line(cell), []).append(cell.seed)
    groups: dict[tuple[int, ...], list[str]] = {}
    for line, own in lines.items():
        groups.setdefault(tuple(own), []).append(line)
    all_lines = len({_line(cell) for cell in results.experiment.cells})
    texts = [f"all of {' · '.join(untouched)}"] if untouched else []
    for seeds, names in groups.items():
        which = f"seed{'s' if len(seeds) > 1 else ''} {join_words([str(seed) for seed in seeds])}"
        texts.append(f"{which} of {'every line' if len(names) == all_lines else ' · '.join(names)}")
    return "; ".join(texts)


def _line(cell: Cell) -> str:
    without = f" without {cell.held_out}" if cell.held_out else ""
    return markdown_escape(f"{cell.label}{without}")


def _scores(done: Results) -> str:
    """The table, without the note on settings: the page has a fuller one."""
    table = results_table(done)
    notes = tuple(note for note in table.notes if note != training_note(done.experiment))
    return to_markdown(replace(table, notes=notes))


def settings_line(results: Results) -> str:
    """What all cells were trained with, in one line; what differs between them is called various."""
    experiment = results.experiment
    each = [flatten(cell.settings.model_dump(mode="json")) for cell in experiment.cells]

    def value(name: str) -> str:
        found = {str(values[name]) for values in each}
        return found.pop() if len(found) == 1 else "various"

    images = Path(experiment.data).name if experiment.data else "synthetic hospitals"
    size = value("data.size")
    parts = [
        f"images: {images}, {size} × {size}",
        f"rounds × local epochs: {value('training.rounds')} × {value('training.local_epochs')}",
        f"{value('model.network')} with {value('model.features')} first features, norm: {value('model.norm')}",
        f"loss: {value('training.loss')}",
        f"{value('training.optimizer')}, learning rate {value('training.learning_rate')} "
        f"({value('training.learning_rate_schedule')}), batches of {value('training.batch_size')}",
    ]
    return f"Settings: preset `{experiment.preset}`; {'; '.join(parts)}."
