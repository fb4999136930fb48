"""What `make bench` makes of samples: bounds, a second try, results that are kept, and the table."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import torch

import bench
from bench_results import Result, Results, table, write_table
from harmofl import AmplitudeNormalization
from measuring import Benchmark, Bound, Samples, benchmarks, in_turns, ratios, spread
from numpy_amplitude import NumpyAmplitude, mean_amplitude

LOOP = Bound("loop", at_most=1.05, quick=1.3)


def measuring(*turns: Sequence[float]) -> Benchmark:
    """A benchmark that gives these samples, one run after the other."""
    left = list(turns)

    def measure(is_quick: bool) -> Samples:
        return {"loop": left.pop(0)}

    return Benchmark(measure, (LOOP,))


def test_a_broken_bound_is_measured_once_more() -> None:
    ((_, result),) = bench.run(measuring([1.2, 1.3, 1.4], [1.0, 1.01, 1.02]), is_quick=False)
    assert result.median == 1.01


def test_a_bound_that_is_broken_twice_fails(capsys: pytest.CaptureFixture[str]) -> None:
    found, broken = bench.measure_all([measuring([1.2], [1.1])], is_quick=False)
    assert broken == ["loop"]
    assert found.values["loop"].median == 1.1
    assert "BROKEN" in capsys.readouterr().out


def test_a_quick_run_has_wide_bounds_that_a_regression_of_a_third_breaks() -> None:
    assert bench.measure_all([measuring([1.2])], is_quick=True)[1] == []
    assert bench.measure_all([measuring([1.4], [1.4])], is_quick=True)[1] == ["loop"]


def test_every_benchmark_of_the_quick_run_is_registered_once() -> None:
    names = [bound.name for each in benchmarks for bound in each.bounds]
    assert len(names) == len(set(names))
    assert {each.name.partition(".")[0] for each in bench.choose([], is_quick=True)} >= {
        "speed",
        "authors_way",
        "growth",
    }


def test_turns_alternate_and_the_first_is_not_counted() -> None:
    order: list[str] = []

    def run(name: str) -> float:
        order.append(name)
        return float(len(order))

    taken = in_turns({"a": lambda: run("a"), "b": lambda: run("b")}, repeats=2)
    assert order == ["a", "b"] * 3
    assert taken == {"a": [3.0, 5.0], "b": [4.0, 6.0]}
    assert ratios(taken["b"], taken["a"]) == [4 / 3, 6 / 5]
    assert spread([3.0]) == (3.0, 3.0, 3.0)


def test_results_are_kept_until_they_are_measured_again(tmp_path: Path) -> None:
    path = tmp_path / "results.json"
    Results({"loop": Result.of([1.0], LOOP), "other": Result.of([2.0], Bound("other"))}).write(path)
    Results.read(path).with_those_of(Results({"loop": Result.of([1.04], LOOP)})).write(path)
    assert {name: result.median for name, result in Results.read(path).values.items()} == {"loop": 1.04, "other": 2.0}


def test_the_table_stands_between_its_marks_and_names_what_is_broken(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- benchmarks -->\nold\n<!-- end -->\nafter\n")
    slow = Bound("slow", at_least=1.1, aim=2.0)
    results = Results({"loop": Result.of([1.2], LOOP), "slow": Result.of([1.5], slow)})
    write_table(page, results, [LOOP, slow, Bound("not measured")])
    text = page.read_text()
    assert text.startswith("before\n<!-- benchmarks -->\n| what |")
    assert text.endswith("<!-- end -->\nafter\n")
    assert "old" not in text
    assert "| loop | 1.2 | 1.2 to 1.2 | at most 1.05 (**broken**) |" in text
    assert "| slow | 1.5 | 1.5 to 1.5 | at least 1.1; the aim of 2 is not reached |" in text
    assert "not measured" not in table(results.values, [Bound("not measured")])


@pytest.mark.parametrize("band", ["dc", "full"])
def test_the_other_way_of_normalizing_amplitudes_gives_the_same_images(band: str) -> None:
    images = torch.rand(3, 2, 12, 10, generator=torch.Generator().manual_seed(0))
    ours = AmplitudeNormalization((2, 12, 10), band)  # type: ignore[arg-type]
    ours.measure([images])
    ours.freeze()
    theirs = NumpyAmplitude(mean_amplitude(images), full=band == "full")
    torch.testing.assert_close(theirs(images), ours(images), rtol=1e-5, atol=1e-5)
