from collections.abc import Callable
from pathlib import Path

import pytest

from folders import segmentation_folder
from harmofl.errors import UsageError
from harmofl.experiments.cells import read_experiment
from harmofl.experiments.plan import Plan, Row, copy_plan, read_plan

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "experiments").glob("*.toml"))
WANTED = {
    *(f"table-{task}" for task in ("histology", "nuclei", "prostate", "nuclei-tiles")),
    *(f"ablation-{task}" for task in ("histology", "nuclei", "prostate", "nuclei-tiles")),
    *(f"figure-{name}" for name in ("samples", "convergence", "local-epochs", "radius")),
    *("band", "schedule", "decay", "norm", "unseen-hospital"),
    *(f"as-published-{task}" for task in ("histology", "nuclei", "prostate", "nuclei-tiles")),
    *(f"fair-{task}" for task in ("histology", "nuclei", "prostate", "nuclei-tiles")),
    *(f"figure-convergence{task}" for task in ("", "-nuclei", "-prostate")),
}

WritePlan = Callable[..., Path]

ROW = '[[rows]]\nname = "FedAvg"\nmethod = "fedavg"\n'
START = 'title = "T"\ntask = "histology"\n'


def test_every_table_and_figure_has_a_file() -> None:
    assert {file.stem for file in FILES} >= WANTED


@pytest.mark.parametrize("preset", ["smoke", "small", "paper", "paper-code"])
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_cell_of_every_file_resolves_for_its_task(file: Path, preset: str) -> None:
    folder = ROOT / "images" if file.stem.endswith("-tiles") else None  # resolving does not open it
    experiment = read_experiment(file, folder, preset)
    assert bool(experiment.cells) == (experiment.plan.shows != "samples")
    assert {cell.settings.preset for cell in experiment.cells} <= {preset}
    assert {cell.settings.task for cell in experiment.cells} <= {experiment.plan.task}


@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate"])
def test_the_tables_compare_seven_methods_and_two_references_beside_the_papers_numbers(task: str) -> None:
    plan = read_plan(ROOT / "experiments" / f"table-{task}.toml")
    methods = ["fedavg", "fedprox", "fednova", "fedadam", "fedbn", "moon", "harmofl"]
    assert [row.method for row in plan.rows] == [*methods, "local", "centralized"]
    assert plan.paper
    assert [name.lower() for name in plan.paper.scores] == methods
    for scores in plan.paper.scores.values():  # the printed average is that of the printed sites, roughly
        means = [score[0] for score in scores if isinstance(score, list)]
        assert sum(means[:-1]) / len(means[:-1]) == pytest.approx(means[-1], abs=0.03)


@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate"])
def test_the_averages_of_the_papers_ablations_are_those_of_their_sites(task: str) -> None:
    paper = read_plan(ROOT / "experiments" / f"ablation-{task}.toml").paper
    assert paper
    for scores in paper.scores.values():
        assert sum(scores[:-1]) / len(scores[:-1]) == pytest.approx(scores[-1], abs=0.1)  # type: ignore[arg-type]


@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate", "nuclei-tiles"])
def test_as_published_harmofl_alone_has_batch_statistics_and_all_have_the_papers_numbers(task: str) -> None:
    folder = ROOT / "images" if task.endswith("-tiles") else None
    experiment = read_experiment(ROOT / "experiments" / f"as-published-{task}.toml", folder)
    norms = {cell.row: cell.settings.model.norm for cell in experiment.cells}
    assert {row for row, norm in norms.items() if norm == "batch-statistics"} == {"HarmoFL"}
    assert bool(experiment.plan.paper) == (folder is None)
    assert {cell.settings.data.split_by for cell in experiment.cells} == {"image"}


@pytest.mark.parametrize("task", ["histology", "nuclei", "prostate", "nuclei-tiles"])
def test_a_fair_comparison_changes_nothing_between_methods(task: str) -> None:
    folder = ROOT / "images" if task.endswith("-tiles") else None
    experiment = read_experiment(ROOT / "experiments" / f"fair-{task}.toml", folder)
    for variation in experiment.plan.variations:
        cells = [cell for cell in experiment.cells if cell.variation == variation.name and cell.seed == 0]
        cells = [cell for cell in cells if cell.row not in ("FedWon", "FreshBN")]  # of other layers, other statistics
        alike = {
            (cell.settings.data, cell.settings.model, cell.settings.training.learning_rate_schedule) for cell in cells
        }
        assert len(alike) == 1


def test_a_plan_takes_a_papers_numbers_from_another_file(write_plan: WritePlan, tmp_path: Path) -> None:
    printed = '[paper]\nsource = "S"\ncolumns = ["A", "Average"]\nscores.FedAvg = [80.0, 80.0]\n'
    (tmp_path / "other.toml").write_text(START + ROW + printed)
    file = write_plan(START + 'paper = "other.toml"\n' + ROW)
    plan = read_plan(file)
    assert plan.paper
    assert plan.paper.source == "S"
    copies = tmp_path / "copies"
    copies.mkdir()
    copy_plan(file, copies)
    assert read_plan(copies / file.name).paper == plan.paper
    with pytest.raises(UsageError, match=r"unknown file in paper 'othe.toml'; did you mean 'other.toml'"):
        read_plan(write_plan(START + 'paper = "othe.toml"\n' + ROW))


def test_cells_come_seed_by_seed_each_in_a_folder_of_its_own(write_plan: WritePlan) -> None:
    experiment = read_experiment(write_plan())
    paths = ["fedavg/seed-0", "amplitude/seed-0", "fedavg/seed-1", "amplitude/seed-1"]
    assert [cell.path for cell in experiment.cells] == paths
    assert [cell.path for cell in experiment.in_table_order] == [paths[0], paths[2], paths[1], paths[3]]
    amplitude = experiment.cells[1].settings
    assert (amplitude.method["name"], amplitude.method["radius"], amplitude.preset) == ("harmofl", 0.0, "smoke")


def test_a_row_may_have_seeds_of_its_own(write_plan: WritePlan) -> None:
    costly = '[[rows]]\nname = "HarmoFL"\nmethod = "harmofl"\nseeds = [1]\n'
    cells = read_experiment(write_plan(START + "seeds = [0, 1]\n" + ROW + costly)).cells
    assert [(cell.row, cell.seed) for cell in cells] == [("FedAvg", 0), ("FedAvg", 1), ("HarmoFL", 1)]
    with pytest.raises(UsageError, match="seeds of row 'FedAvg': 2 occurs 2 times"):
        read_plan(write_plan(START + ROW + "seeds = [2, 2]\n"))


def test_variations_cross_all_rows_unless_they_name_some(write_plan: WritePlan) -> None:
    other = '[[rows]]\nname = "HarmoFL"\nmethod = "harmofl"\n'
    batch = '[[variations]]\nname = "batch norm"\n'
    group = '[[variations]]\nname = "group norm"\nonly = ["HarmoFL"]\nsettings.model.norm = "group"\n'
    cells = read_experiment(write_plan(START + ROW + other + batch + group)).cells
    assert [(cell.label, cell.path, cell.settings.model.norm) for cell in cells] == [
        ("FedAvg, batch norm", "fedavg/batch-norm/seed-0", "batch"),
        ("HarmoFL, batch norm", "harmofl/batch-norm/seed-0", "batch"),
        ("HarmoFL, group norm", "harmofl/group-norm/seed-0", "group"),
    ]


def test_a_variation_may_leave_rows_out(write_plan: WritePlan) -> None:
    other = '[[rows]]\nname = "HarmoFL"\nmethod = "harmofl"\n'
    without = '[[variations]]\nname = "all"\n[[variations]]\nname = "some"\nwithout = ["FedAvg"]\n'
    cells = read_experiment(write_plan(START + ROW + other + without)).cells
    assert [cell.label for cell in cells] == ["FedAvg, all", "HarmoFL, all", "HarmoFL, some"]
    with pytest.raises(UsageError, match="unknown row 'FedAvq'; did you mean 'FedAvg'"):
        read_plan(write_plan(START + ROW + '[[variations]]\nname = "v"\nwithout = ["FedAvq"]\n'))


def test_settings_of_a_variation_win_over_a_rows_and_those_over_everybodys(write_plan: WritePlan) -> None:
    all_rows = "[settings.training]\nrounds = 7\nbatch_size = 5\nlocal_epochs = 3\n"
    row = ROW + "settings.training.batch_size = 6\nsettings.training.local_epochs = 4\n"
    (cell,) = read_experiment(
        write_plan(START + all_rows + row + '[[variations]]\nname = "v"\nsettings.training.local_epochs = 2\n')
    ).cells
    training = cell.settings.training
    assert (training.rounds, training.batch_size, training.local_epochs) == (7, 6, 2)


def test_local_epochs_divide_the_rounds_of_whatever_preset_without_a_rest() -> None:
    file = ROOT / "experiments" / "figure-local-epochs.toml"
    for preset, rounds in {"paper": [96, 48, 24, 12], "small": [16, 8, 4, 2], "smoke": [2, 1, 1, 1]}.items():
        cells = read_experiment(file, preset=preset).cells
        found = {cell.settings.training.local_epochs: cell.settings.training.rounds for cell in cells}
        assert found == dict(zip([1, 2, 4, 8], rounds, strict=True))


def test_each_site_is_held_out_in_turn(write_plan: WritePlan) -> None:
    cells = read_experiment(write_plan(START + 'hold_out = "each"\n' + ROW)).cells
    assert [cell.settings.data.hold_out_site for cell in cells] == [f"hospital-{number}" for number in range(5)]
    assert cells[2].path == "fedavg/without-hospital-2/seed-0"


def test_each_site_of_a_folder_is_held_out_in_turn(write_plan: WritePlan, tmp_path: Path) -> None:
    folder = tmp_path / "images"
    folder.mkdir()
    plan = write_plan(f'title = "T"\ntask = "segmentation"\nhold_out = "each"\n{ROW}')
    cells = read_experiment(plan, segmentation_folder(folder, sites=3)).cells
    assert [cell.held_out for cell in cells] == ["site-0", "site-1", "site-2"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title = ", "not valid TOML"),
        ('task = "histology"', "title is missing"),
        (START, r"rows = \[\]: shows = 'table' needs at least one"),
        (START + "sedes = [1]\n" + ROW, "unknown field 'sedes'; did you mean 'seeds'"),
        (START + '[[rows]]\nname = "A"\nmetod = "fedavg"\n', r"unknown field 'rows\[1\].metod'; did you mean"),
        (START + '[[rows]]\nname = "A"\n', r"rows\[1\].method is missing"),
        (
            START + '[rows]\nname = "A"\n',
            r"rows = .*: must be a list of methods and tables, each begun",
        ),
        (START + 'rows = ["fedavgg"]\n', "unknown method 'fedavgg'; did you mean 'fedavg'"),
        (START + "extend = 'table.toml'\n" + ROW, "unknown field 'extend'; did you mean 'extends'"),
        ("extends = 3\n" + START + ROW, "extends = 3: must be the name of another experiment's file"),
        ("extends = 'plan.toml'\n" + START + ROW, r"unknown file in extends 'plan.toml'"),
        ("extends = 'tiny.toml'\n" + START + ROW, "extends = 'tiny.toml': the files extend one another in a circle"),
        (START + ROW.replace('"fedavg"', '"fedavgg"'), "unknown method 'fedavgg'; did you mean 'fedavg'"),
        (START.replace("histology", "histologie") + ROW, "unknown task 'histologie'; did you mean 'histology'"),
        (START + 'seeds = ["0"]\n' + ROW, "seeds.0 = '0': must be a valid integer"),
        (START + "seeds = [1, 1]\n" + ROW, "seeds: 1 occurs 2 times"),
        (START + ROW + ROW, "rows: 'fedavg' occurs 2 times"),
        (START + 'shows = "tabel"\n' + ROW, "shows = 'tabel': must be 'table', 'convergence'"),
        (START + 'shows = "curve"\n' + ROW, "axis = None: only a curve has an axis"),
        (
            START + 'baseline = "batchnorm"\n' + ROW + '[[variations]]\nname = "batch norm"\n',
            "unknown baseline 'batchnorm'; did you mean 'batch norm'",
        ),
        (START + ROW + "settings.seed = 3\n", "settings of row 'FedAvg': seed is given by seeds"),
        (START + ROW + 'settings.method.name = "x"\n', "method.name is given by the row's method"),
        (START + ROW + "settings.method = 5\n", "method is given by the row's method"),
        (START + '[settings.data]\nfolder = "images"\n' + ROW, "settings: data.folder is given by --data"),
        (
            START + ROW + '[[variations]]\nname = "v"\nonly = []\n',
            r"variations.0.only = \[\]: must be a list of at least 1",
        ),
        (START + ROW + "settings.training.runds = 3\n", "row 'FedAvg': unknown setting 'training.runds'; did you mean"),
        (START + ROW + "settings.method.radius = 3.0\n", "row 'FedAvg': unknown setting of FedAvg 'method.radius'"),
        (
            START + ROW + '[[variations]]\nname = "v"\nonly = ["fedavg"]\n',
            "unknown row 'fedavg'; did you mean 'FedAvg'",
        ),
        (
            START + ROW + '[[variations]]\nname = "v"\nsettings.training.rounds = 0\n',
            "row 'FedAvg', variation 'v': training.rounds = 0: must be greater than or equal to 1",
        ),
        (START + 'preset = "tiny"\n' + ROW, "unknown preset 'tiny'"),
        (
            START + ROW + '[paper]\nsource = "P"\ncolumns = ["A"]\n[paper.scores]\nFedAvg = [1.0, 2.0]\n',
            "paper.scores.FedAvg: 2 numbers for 1 columns",
        ),
        (START + ROW + '[paper]\nsource = "P"\ncolums = ["A"]\n', "unknown field 'paper.colums'; did you mean"),
    ],
)
def test_what_is_wrong_with_a_file_is_named_with_the_file(write_plan: WritePlan, text: str, message: str) -> None:
    path = write_plan(text)
    with pytest.raises(UsageError, match=message) as error:
        read_experiment(path)
    assert str(error.value).startswith(f"{path}: ")


def test_a_method_alone_is_a_row_under_its_own_name(write_plan: WritePlan) -> None:
    plan = read_plan(write_plan(START + 'rows = ["fedavg", { name = "mine", method = "harmofl" }, "centralized"]\n'))
    assert [(row.name, row.method) for row in plan.rows] == [
        ("FedAvg", "fedavg"),
        ("mine", "harmofl"),
        ("centralized", "centralized"),
    ]


BASE = f"""{START}seeds = [3, 4]
rows = ["fedavg"]
settings.training = {{ rounds = 7, batch_size = 5 }}
paper = {{ source = "P", columns = ["A"], scores.FedAvg = [50.0] }}
"""


def test_a_file_says_only_in_what_it_differs_from_the_one_that_it_extends(write_plan: WritePlan) -> None:
    write_plan(BASE, "base")
    middle = 'extends = "base.toml"\ntitle = "M"\nrows = ["fedbn", "harmofl"]\nsettings.training.batch_size = 6\n'
    write_plan(middle, "middle")
    plan = read_plan(write_plan('extends = "middle.toml"\ntitle = "T"\ntask = "nuclei"\nseeds = [5]\n'))
    assert (plan.title, plan.task, plan.seeds) == ("T", "nuclei", [5])
    assert [row.name for row in plan.rows] == ["FedBN", "HarmoFL"]
    assert plan.settings == {"training": {"rounds": 7, "batch_size": 6}}
    assert plan.paper is None  # its numbers belong to another task


def test_a_title_is_not_inherited(write_plan: WritePlan) -> None:
    write_plan(BASE, "base")
    with pytest.raises(UsageError, match=r"tiny.toml: title is missing"):
        read_plan(write_plan('extends = "base.toml"\ntask = "nuclei"\n'))


def test_what_is_wrong_with_an_extended_file_is_named_with_that_file(write_plan: WritePlan) -> None:
    path = write_plan('extends = "base.toml"\ntitle = "T"\nseeds = [0]\n')
    base = write_plan(BASE.replace("[3, 4]", '["3"]'), "base")
    with pytest.raises(UsageError, match=f"{path}: {base}: seeds.0 = '3': must be a valid integer"):
        read_plan(path)
    write_plan(BASE.replace("seeds", "sedes"), "base")
    with pytest.raises(UsageError, match=f"{path}: {base}: unknown field 'sedes'; did you mean 'seeds'"):
        read_plan(path)
    write_plan(f'extends = "tiny.toml"\n{BASE}', "base")
    with pytest.raises(UsageError, match=f"{path}: {base}: extends = 'tiny.toml': the files extend .* in a circle"):
        read_plan(path)


def rows_but_for_moons_weight(plan: Plan) -> list[Row]:
    """MOON's weight is a preset's; the table of prostate keeps the one with which its kept cells were run."""
    return [row.model_copy(update={"settings": {}}) if row.method == "moon" else row for row in plan.rows]


def test_the_files_for_several_tasks_differ_in_nothing_but_the_task_and_its_network() -> None:
    for kind in ("table", "band", "norm", "phantoms"):
        base, *others = (read_plan(file) for file in sorted((ROOT / "experiments").glob(f"{kind}*.toml")))
        own = {"title", "task", "paper", "extends", "settings", "rows"}
        assert others
        assert all(other.model_dump(exclude=own) == base.model_dump(exclude=own) for other in others), kind
        assert all(rows_but_for_moons_weight(other) == rows_but_for_moons_weight(base) for other in others), kind
        assert all(other.settings in ({}, {"model": {"network": "basic-unet"}}) for other in others), kind


def test_ablations_differ_between_tasks_in_how_long_the_perturbation_is_and_in_nothing_else() -> None:
    base, *others = (read_plan(file) for file in sorted((ROOT / "experiments").glob("ablation-*.toml")))

    def parts(plan: Plan) -> list[tuple[str, str, object, bool]]:
        own = [(row, row.settings.get("method", {})) for row in plan.rows]
        return [(row.name, row.method, method.get("band"), method.get("radius") == 0) for row, method in own]

    assert all(parts(other) == parts(base) and other.seeds == base.seeds for other in others)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.toml: No such file"):
        read_experiment(tmp_path / "nowhere.toml")


@pytest.mark.parametrize(
    ("more", "field"),
    [(ROW, "rows"), ('[[variations]]\nname = "v"\n', "variations"), ('hold_out = "each"\n', "hold_out")],
)
def test_samples_are_drawn_without_anything_that_trains(write_plan: WritePlan, more: str, field: str) -> None:
    assert not read_experiment(write_plan(f'{START}shows = "samples"\n')).cells
    with pytest.raises(UsageError, match=f"{field}: shows = 'samples' trains nothing"):
        read_plan(write_plan(f'{START}shows = "samples"\n{more}'))


def test_the_reference_is_fedavg_or_the_first_row_or_the_one_named(tmp_path: Path) -> None:
    def reference(rows: str, more: str = "") -> str:
        path = tmp_path / "plan.toml"
        path.write_text(f'title = "T"\ntask = "histology"\nrows = {rows}\n{more}')
        return read_plan(path).reference_row

    assert reference('["fedbn", "fedavg"]') == "FedAvg"
    assert reference('["fedbn", "harmofl"]') == "FedBN"
    assert reference('["fedavg", "fedbn"]', 'reference = "FedBN"') == "FedBN"
    with pytest.raises(UsageError, match="unknown reference 'FedB'; did you mean 'FedBN'"):
        reference('["fedavg", "fedbn"]', 'reference = "FedB"')


def test_a_plan_is_copied_with_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "base.toml").write_text('title = "Base"\ntask = "histology"\nrows = ["fedavg"]\nseeds = [3]\n')
    (tmp_path / "more.toml").write_text('extends = "base.toml"\ntitle = "More"\nrows = ["fedbn"]\n')
    copy_plan(tmp_path / "base.toml", tmp_path / "copy")
    assert (tmp_path / "copy" / "base.toml").read_text() == (tmp_path / "base.toml").read_text()
    copy_plan(tmp_path / "more.toml", tmp_path / "alone")
    alone, extending = read_plan(tmp_path / "alone" / "more.toml"), read_plan(tmp_path / "more.toml")
    assert alone.model_dump(exclude={"extends"}) == extending.model_dump(exclude={"extends"})


def test_a_plugin_may_lie_beside_the_plan(write_plan: WritePlan, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import harmofl\nharmofl.register(harmofl.Method('Mine', limit='always'))\n")
    file = write_plan(START + 'settings.plugins.files = ["mine.py"]\nrows = ["mine"]\n')
    assert [row.name for row in read_plan(file).rows] == ["Mine"]
    copies = tmp_path / "copies"
    copies.mkdir()
    copy_plan(file, copies)
    assert read_plan(copies / file.name).settings["plugins"]["files"] == [str(tmp_path.resolve() / "mine.py")]


def test_a_hospital_that_took_no_part_has_no_validation_scores(write_plan: WritePlan) -> None:
    with pytest.raises(UsageError, match=r"scores = 'validation': a site that takes no part \(hold_out\)"):
        read_plan(write_plan(START + 'hold_out = "each"\nscores = "validation"\n' + ROW))
