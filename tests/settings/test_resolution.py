import tomllib
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from harmofl import registry
from harmofl.errors import UsageError
from harmofl.methods.catalogue import fedavg, harmofl, moon
from harmofl.methods.harmonizers import NormalizeAmplitude
from harmofl.methods.method import Method
from harmofl.methods.penalties import ModelContrast, Penalty, Proximity
from harmofl.methods.pieces import LocalRound
from harmofl.methods.steps import PerturbedDescent
from harmofl.runs.finished import validate_settings
from harmofl.settings import (
    Settings,
    TrainingSettings,
    differences,
    flatten,
    resolve,
    setting_names,
)
from harmofl.settings.resolution import preset_values

PAPER_TASKS = ("histology", "nuclei", "prostate")

PRESETS = ("paper", "paper-code", "small", "smoke")


def resolved(task: str = "histology", method: str | Method = "fedavg", **others: Any) -> Settings:
    return resolve(task, method, **others)[0]


# --- layers ----------------------------------------------------------------------------------------------------


def test_a_preset_lies_over_the_schema() -> None:
    assert TrainingSettings().optimizer == "adam"
    training = resolved(preset="paper").training
    assert (training.optimizer, training.learning_rate, training.local_epochs) == ("sgd", 1e-3, 1)


def test_a_methods_defaults_lie_over_the_preset() -> None:
    eager = Method("eager", defaults={"training.batch_size": 3})
    assert resolved(method="fedavg", preset="paper").training.batch_size == 128
    assert resolved(method=eager, preset="paper").training.batch_size == 3


def test_a_file_lies_over_the_methods_defaults_and_overrides_over_the_file() -> None:
    eager = Method("eager", defaults={"training.batch_size": 3, "training.rounds": 3, "training.local_epochs": 3})
    file = {"training": {"batch_size": 4, "rounds": 4}}
    training = resolved(method=eager, file=file, overrides={"training.rounds": 5}).training
    assert (training.local_epochs, training.batch_size, training.rounds) == (3, 4, 5)


def test_the_methods_own_settings_are_layered_the_same_way() -> None:
    file = {"method": {"name": "harmofl", "decay": 0.2, "radius": 0.2}}
    settings, method = resolve("nuclei", preset="paper", file=file, overrides={"method.radius": 0.3})
    expected = {
        "spacing": None,
        "band": "full",
        "decay": 0.2,
        "schedule": "first-round",
        "radius": 0.3,
        "radius_relative": None,
        "reuse": 1,
        "ascent_fraction": 1.0,
    }
    assert settings.method == {"name": "harmofl"} | expected
    assert method.settings == expected


@pytest.mark.parametrize("spelling", ["harmofl", "HarmoFL"])
def test_the_file_may_name_its_method_in_any_case(spelling: str) -> None:
    settings, method = resolve("nuclei", file={"method": {"name": spelling, "radius": 0.2}})
    assert settings.method["name"] == "harmofl"
    assert method.step == PerturbedDescent(radius=0.2)


def test_the_files_method_settings_do_not_reach_another_method() -> None:
    file = {"method": {"name": "harmofl", "radius": 0.2}}
    assert resolved(method="fedprox", file=file).method == {"name": "fedprox", "mu": 0.01}
    assert resolved("nuclei", None, file=file, overrides={"method.name": "moon"}).method["name"] == "moon"


def test_task_method_and_preset_may_come_from_the_file_or_from_overrides() -> None:
    file = {"task": "nuclei", "preset": "paper", "method": {"name": "fedavg"}}
    assert resolve(file=file)[0].training.rounds == 500
    changed = resolve(file=file, overrides={"task": "histology", "preset": "smoke"})[0]
    assert (changed.task, changed.preset, changed.training.rounds) == ("histology", "smoke", 2)
    assert resolve(task="prostate", preset="paper-code", file=file)[0].model.norm == "batch-statistics"


def test_resolving_leaves_the_file_as_it_was() -> None:
    file = {"task": "nuclei", "method": {"name": "harmofl", "radius": 0.2}, "training": {"rounds": 3}}
    copy = tomllib.loads('task = "nuclei"\n[method]\nname = "harmofl"\nradius = 0.2\n[training]\nrounds = 3')
    resolve(file=file, overrides={"training.rounds": 4})
    assert file == copy


def test_a_method_of_ones_own_is_resolved_as_it_is() -> None:
    mine = Method("Mine", penalties=(Proximity(mu=0.5),))
    settings, method = resolve("histology", mine, overrides={"method.mu": 0.25})
    assert settings.method == {"name": "mine", "mu": 0.25}
    assert method.penalties == (Proximity(mu=0.25),)


# --- presets and methods ---------------------------------------------------------------------------------------


EXACT_STEP = {"radius": 0.05, "radius_relative": None, "reuse": 1, "ascent_fraction": 1.0}


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_the_paper_preset_is_the_papers_text(task: str) -> None:
    settings = resolved(task, "harmofl", preset="paper")
    expected = {"name": "harmofl", "spacing": None, "band": "full", "decay": 0.1, "schedule": "first-round"}
    assert settings.method == expected | EXACT_STEP
    assert settings.model.norm == "batch"


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_the_paper_code_preset_is_the_released_code(task: str) -> None:
    settings = resolved(task, "harmofl", preset="paper-code")
    expected = {"name": "harmofl", "spacing": None, "band": "dc", "decay": 0.0, "schedule": "first-round"}
    assert settings.method == expected | EXACT_STEP
    assert settings.model.norm == "batch-statistics"
    assert settings.data.split_by == "image"
    assert settings.training.score == (None if task == "histology" else "dice_with_background")


def test_the_paper_code_preset_has_the_released_codes_training_of_prostate() -> None:
    training = resolved("prostate", "harmofl", preset="paper-code").training
    assert (training.loss, training.second_momentum) == ("joint", 0.999)
    real = resolved("prostate", "harmofl", preset="paper-code", overrides={"data.folder": "somewhere"})
    assert real.data.slices == "inner-with-foreground"
    assert resolved("prostate", "harmofl", preset="paper").training.second_momentum == 0.99


@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("preset", ["small", "smoke"])
def test_other_presets_have_our_defaults(task: str, preset: str) -> None:
    settings = resolved(task, "harmofl", preset=preset)
    radius = {"radius": None, "radius_relative": 2.0e-4 if task == "histology" else 7.7e-4}
    expected = {"name": "harmofl", "spacing": None, "band": "dc", "decay": 0.1, "schedule": "before-training"}
    assert settings.method == expected | EXACT_STEP | radius
    assert settings.model.norm == "batch"
    assert settings.federation.weights == "uniform"
    assert settings.training.optimizer_state == "keep"


PAPER = {  # size, network, features, rounds, batch, optimizer, rate, augmentation
    "histology": (96, "densenet121", 64, 100, 128, "sgd", 1e-3, "none"),
    "nuclei": (256, "unet", 32, 500, 8, "adam", 1e-4, "none"),
    "prostate": (384, "unet", 32, 500, 16, "adam", 1e-4, "dihedral"),
}


@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("preset", ["paper", "paper-code"])
def test_paper_presets_have_the_papers_training(task: str, preset: str) -> None:
    settings = resolved(task, preset=preset)
    model, training = settings.model, settings.training
    assert PAPER[task] == (
        settings.data.size,
        model.network,
        model.features,
        training.rounds,
        training.batch_size,
        training.optimizer,
        training.learning_rate,
        training.augmentation,
    )
    assert (training.local_epochs, training.momentum, training.weight_decay) == (1, 0.9, 1e-4)
    assert training.learning_rate_schedule == "constant"


def test_fedadam_has_its_own_server_learning_rate() -> None:
    assert resolved(method="fedavg").federation.server_learning_rate == 1
    assert resolved(method="fedadam").federation.server_learning_rate == 1e-2
    changed = resolved(method="fedadam", overrides={"federation.server_learning_rate": 0.1})
    assert changed.federation.server_learning_rate == 0.1


def test_fednova_keeps_adams_state_as_a_step_counts_as_one_anyway() -> None:
    assert resolved("nuclei", "fednova").training.optimizer_state == "keep"
    adam = {"training.optimizer": "adam"}
    assert resolved("histology", "fednova", overrides=adam).training.optimizer_state == "keep"
    sgd = {"training.optimizer": "sgd"}
    assert resolved("nuclei", "fednova", overrides=sgd).training.optimizer_state == "reset"
    reset = {"training.optimizer_state": "reset"}  # a choice, where it is not required
    assert resolved("nuclei", "fednova", overrides=reset).training.optimizer_state == "reset"


def test_fednova_resets_sgd_and_refuses_to_keep_its_momentum() -> None:
    assert resolved(method="fednova").training.optimizer_state == "reset"
    for source in (
        {"file": {"training": {"optimizer_state": "keep"}}},
        {"overrides": {"training.optimizer_state": "keep"}},
    ):
        with pytest.raises(UsageError, match=r"training\.optimizer_state = 'keep': FedNova needs 'reset'"):
            resolved(method="fednova", **source)


# --- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.rounds": 0}, r"training\.rounds = 0: must be greater than or equal to 1"),
        ({"training.rounds": "many"}, r"training\.rounds = 'many': must be a valid integer"),
        ({"training.learning_rate": float("nan")}, r"training\.learning_rate = nan: must be"),
        ({"training.learning_rate": float("inf")}, r"training\.learning_rate = inf: must be a finite number"),
        ({"training.optimizer": "lion"}, r"training\.optimizer = 'lion': must be 'sgd' or 'adam'"),
        ({"federation.quorum": 1.5}, r"federation\.quorum = 1\.5: must be less than or equal to 1"),
        ({"data.size": 8}, r"data\.size = 8: must be greater than or equal to 16"),
        ({"data.dimensions": 4}, r"data\.dimensions = 4: must be 2 or 3"),
        ({"data.spacing": [1, 1]}, r"data\.spacing = \[1, 1\]: must be three numbers above 0, in millimetres"),
        ({"data.spacing": [1, 0, 1]}, r"data\.spacing = \[1, 0, 1\]: must be three numbers above 0"),
        ({"data.patch": [4, 32, 32]}, r"data\.patch = \[4, 32, 32\]: must be three whole numbers from 8 to 1024"),
        ({"data.spacing": [3, 1, 1]}, r"data\.spacing = \[3.*, 1.*, 1.*\]: only for data\.dimensions = 3"),
        ({"data.patch": [16, 32, 32]}, r"data\.patch = \[16, 32, 32\]: only for data\.dimensions = 3"),
        ({"data.sites": "A"}, r"data\.sites = 'A': must be a list, in square brackets"),
        ({"seed": -1}, r"seed = -1: must be greater than or equal to 0"),
        ({"device": "tpu"}, r"device = 'tpu': must be 'auto', 'cpu' or 'cuda'"),
        ({"method.radius": -1}, r"method\.radius = -1: must be greater than or equal to 0"),
        ({"method.radius": float("inf")}, r"method\.radius = inf: must be a finite number"),
        ({"method.band": "low"}, r"method\.band = 'low': must be 'none', 'dc', 'full' or a radius"),
    ],
)
def test_an_invalid_value_is_refused_with_its_name_and_what_is_allowed(overrides: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolved(method="harmofl", overrides=overrides)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"trainig.rounds": 5}, r"unknown setting 'trainig'; did you mean 'training'\?"),
        ({"training.round": 5}, r"unknown setting 'training\.round'; did you mean 'training\.rounds'\?"),
        ({"sed": 5}, r"unknown setting 'sed'; did you mean 'seed'\?"),
        ({"rounds": 5}, r"^unknown setting 'rounds'; did you mean 'training\.rounds'\?$"),
        ({"method.radios": 5}, r"unknown setting of HarmoFL 'method\.radios'; did you mean 'method\.radius'\?"),
        ({"method.name": "harmfl"}, r"unknown method 'harmfl'; did you mean 'harmofl'\?"),
        ({"preset": "smal"}, r"unknown preset 'smal'; did you mean 'small'\?"),
        ({"task": "nuclie"}, r"unknown task 'nuclie'; did you mean 'nuclei'\?"),
        ({"training": 5}, r"training = 5: must be a section, such as \[training\]"),
        ({"method": "harmofl"}, r"method = 'harmofl': must be a section; name it with method\.name"),
    ],
)
def test_an_unknown_name_is_refused_with_a_suggestion(overrides: dict[str, Any], message: str) -> None:
    file = {"task": "nuclei", "method": {"name": "harmofl"}}
    with pytest.raises(UsageError, match=message):
        resolve(file=file, overrides=overrides)


def test_a_task_and_a_method_must_be_named() -> None:
    with pytest.raises(UsageError, match="no task given"):
        resolve(method="fedavg")
    with pytest.raises(UsageError, match="no method given"):
        resolve(task="nuclei")


def test_settings_are_frozen() -> None:
    settings = resolved()
    with pytest.raises(ValueError, match="frozen"):
        settings.seed = 1  # type: ignore[misc]
    with pytest.raises(ValueError, match="frozen"):
        settings.training.rounds = 1  # type: ignore[misc]


# --- texts -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("method", registry.methods.names())
def test_resolved_settings_written_as_toml_resolve_to_themselves(method: str, preset: str) -> None:
    settings, chosen = resolve("prostate", method, preset, overrides={"seed": 3, "training.gradient_clip": 1.5})
    again, chosen_again = resolve(file=tomllib.loads(settings.to_toml()))
    assert again == settings
    assert chosen_again == chosen


def test_a_radius_band_survives_toml() -> None:
    settings = resolved(method="harmofl", overrides={"method.band": 0.25})
    assert resolve(file=tomllib.loads(settings.to_toml()))[1].settings["band"] == 0.25


def test_every_setting_has_a_name_and_a_preset_may_only_use_those() -> None:
    names = setting_names()
    assert {"seed", "device", "data.shift", "model.norm", "training.rounds", "federation.quorum"} <= set(names)
    for task in registry.tasks.names():
        for preset, dimensions in product(registry.tasks.find(task).presets.values(), (2, 3)):
            values = preset_values(preset, folder="somewhere", dimensions=dimensions)
            assert {name for name in flatten(values) if not name.startswith("method.")} <= set(names)


def test_differences_leave_out_what_does_not_change_results() -> None:
    first = resolved(overrides={"federation.workers": 1, "federation.timeout": 5, "seed": 1})
    second = resolved(overrides={"federation.workers": 2, "device": "cpu", "training.rounds": 7})
    assert differences(first, second) == ["device", "seed", "training.rounds"]
    assert differences(first, resolved(method=fedavg, overrides={"seed": 1})) == []


def test_a_file_of_another_method_keeps_the_users_settings_but_not_that_methods_own() -> None:
    written, _ = resolve("histology", "fedadam", "smoke", overrides={"training.rounds": 7})
    file = tomllib.loads(written.to_toml())
    assert file["federation"]["server_learning_rate"] == 1e-2
    settings, _ = resolve(method="fedavg", file=file)
    assert settings.federation.server_learning_rate == 1.0
    assert settings.training.rounds == 7


def test_a_method_gets_what_it_needs_from_a_file_of_another_method() -> None:
    written, _ = resolve("histology", "fedavg", "smoke")
    file = tomllib.loads(written.to_toml())
    assert resolve(method="fednova", file=file)[0].training.optimizer_state == "reset"
    assert resolve(method="FedAdam", file=file)[0].federation.server_learning_rate == 1e-2
    chosen = resolve(method="fedadam", file=file, overrides={"federation.server_learning_rate": 0.5})[0]
    assert chosen.federation.server_learning_rate == 0.5


def test_a_preset_can_wish_for_one_method_alone() -> None:
    assert resolve("nuclei", "moon", "small")[1].settings["mu"] == 0.05
    assert resolve("nuclei", "fedprox", "small")[1].settings["mu"] == 0.01
    assert resolve("nuclei", "moon", "paper")[1].settings["mu"] == 1.0
    assert resolve("nuclei", "moon", "small", overrides={"method.mu": 2.0})[1].settings["mu"] == 2.0


@pytest.mark.parametrize("preset", ["paper", "paper-code"])
def test_a_preset_leaves_what_was_written_in_a_methods_code(preset: str) -> None:
    written = NormalizeAmplitude(band=0.1, decay=0.5, schedule="every-round")
    assert resolve("nuclei", replace(harmofl, harmonizer=written), preset)[1].harmonizer == written
    half_written = replace(harmofl, name="Mine", harmonizer=NormalizeAmplitude(decay=0.5))
    settings = resolved("nuclei", half_written, preset=preset).method
    usual = resolved("nuclei", "harmofl", preset=preset).method
    assert settings == usual | {"name": "mine", "decay": 0.5}
    mine = replace(moon, penalties=(ModelContrast(mu=3.0),))
    assert resolve("nuclei", mine, "small")[1].settings["mu"] == 3.0
    assert resolve("nuclei", mine, "small", overrides={"method.mu": 2.0})[1].settings["mu"] == 2.0


def test_a_setting_of_a_method_that_is_none_is_left_out_and_read_back() -> None:
    @dataclass(frozen=True)
    class Limited(Penalty):
        largest: float | None = None
        strength: float = 1.0

        def start(self, local: LocalRound) -> None:
            return None

    method = Method("Limited", penalties=(Limited(),))
    settings = resolved(method=method, overrides={"method.strength": 2.0})
    file = tomllib.loads(settings.to_toml())
    assert file["method"] == {"name": "limited", "strength": 2.0}
    assert resolved(method=method, file=file) == settings
    limited = resolved(method=method, overrides={"method.largest": 3.0})
    assert resolved(method=method, file=tomllib.loads(limited.to_toml())) == limited
    always = Method("Limited", penalties=(Limited(largest=1.0),))  # None would be read back as 1.0
    with pytest.raises(UsageError, match=r"method\.largest = None: TOML cannot express it"):
        resolved(method=always, overrides={"method.largest": None})


def test_another_preset_replaces_what_the_preset_of_a_file_had_set() -> None:
    written, _ = resolve("nuclei", "harmofl", "small", overrides={"training.rounds": 7, "method.radius": 0.2})
    file = tomllib.loads(written.to_toml())
    settings, method = resolve(preset="paper", file=file)
    assert (settings.data.size, settings.model.features) == (256, 32)
    assert settings.training.rounds == 7
    assert method.settings["band"] == "full"
    assert method.settings["radius"] == 0.2
    assert resolve(task="prostate", file=file)[0].data.images == 24


def test_a_whole_file_of_0_1_is_used_with_images_of_another_kind_as_one_of_today() -> None:
    file = tomllib.loads(resolved("prostate", "fedavg", preset="paper-code").to_toml())
    before = {name: section for name, section in file.items() if name != "prediction"}
    elsewhere = {"data.folder": "there"}
    assert resolve(file=before, overrides=elsewhere) == resolve(file=file, overrides=elsewhere)
    assert resolve(file=before, overrides=elsewhere) == resolve("prostate", "fedavg", "paper-code", overrides=elsewhere)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"training.rounds": True}, r"training.rounds = True: must be a valid integer"),
        ({"training.learning_rate": "0.5"}, r"training.learning_rate = '0.5': must be a valid number"),
        ({"method.mu": "0.5"}, r"method.mu = '0.5': must be a valid number"),
        ({"method.name": "moon"}, r"method.name = 'moon': --method says 'fedprox'"),
        ({"data.images": 10}, r"data.images = 10: histology needs at least 24"),
    ],
)
def test_quiet_conversions_and_contradictions_are_refused(overrides: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve("histology", "fedprox", "smoke", overrides=overrides)


def test_a_whole_number_is_a_number() -> None:
    assert resolve("histology", "fedprox", "smoke", overrides={"method.mu": 1})[1].settings["mu"] == 1.0


def test_another_preset_gives_back_a_methods_usual_settings() -> None:
    written, _ = resolve("nuclei", "moon", "small")
    file = tomllib.loads(written.to_toml())
    assert file["method"]["mu"] == 0.05
    assert resolve(preset="paper", file=file)[1].settings["mu"] == 1.0


def test_the_part_of_a_preset_for_volumes_holds_for_volumes_only() -> None:
    preset = {
        "data": {"size": 48},
        "volumes": {"data": {"patch": [8, 32, 32]}, "real_images": {"data": {"spacing": [3, 1, 1]}}},
        "real_images": {"data": {"limit": 5}},
    }
    assert preset_values(preset, None) == {"data": {"size": 48}}
    assert preset_values(preset, "here") == {"data": {"size": 48, "limit": 5}}
    assert preset_values(preset, None, 3) == {"data": {"size": 48, "patch": [8, 32, 32]}}
    of_folder = {"size": 48, "patch": [8, 32, 32], "spacing": [3, 1, 1], "limit": 5}
    assert preset_values(preset, "here", 3) == {"data": of_folder}


def test_of_two_alternatives_the_later_layer_decides() -> None:
    def radii(**more: Any) -> tuple[float | None, float | None]:
        found = resolved("histology", "harmofl", preset="small", **more).method
        return found["radius"], found["radius_relative"]

    assert radii() == (None, 2.0e-4)
    assert radii(overrides={"method.radius": 0.1}) == (0.1, None)
    assert radii(file={"method": {"radius": 0.1}}) == (0.1, None)
    assert radii(file={"method": {"radius": 0.1}}, overrides={"method.radius_relative": 0.01}) == (None, 0.01)
    with pytest.raises(UsageError, match=r"method.radius = 0.1, radius_relative = 0.2: give one of the two"):
        radii(overrides={"method.radius": 0.1, "method.radius_relative": 0.2})


def test_a_list_in_a_file_is_the_same_setting_as_in_code() -> None:
    settings = resolved("nuclei", "harmofl", preset="smoke", overrides={"method.spacing": [0.5, 0.5]})
    file = tomllib.loads(settings.to_toml())
    assert validate_settings(file, Path("config.toml")).method == settings.method


@pytest.mark.parametrize("chosen", [{}, {"method.radius": 0.1}, {"method.radius_relative": 0.01}])
def test_a_file_brings_the_same_alternative_back(chosen: dict[str, float]) -> None:
    settings = resolved("nuclei", "harmofl", preset="smoke", overrides=chosen)
    file = tomllib.loads(settings.to_toml())
    assert len(file["method"].keys() & {"radius", "radius_relative"}) == 1
    assert resolve(file=file)[0] == settings
    assert validate_settings(file, Path("config.toml")) == settings


def test_a_preset_leaves_a_radius_alone_that_was_written_in_code() -> None:
    mine = Method("Mine", step=PerturbedDescent(radius=0.3))
    assert resolve("histology", mine, "small")[1].step == PerturbedDescent(radius=0.3)
    usual = Method("Mine", step=PerturbedDescent())
    assert resolve("histology", usual, "small")[1].step == PerturbedDescent(radius_relative=2.0e-4)
