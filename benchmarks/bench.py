"""Measure every ratio that this project promises, print it with its spread, and fail where a bound is broken.

python benchmarks/bench.py [--quick] [--only WORD…] [--list] [--table]
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from pathlib import Path

import torch

import authors_way  # noqa: F401 - every module registers its benchmarks
import engines  # noqa: F401
import growth  # noqa: F401
import larger_than_memory  # noqa: F401
import parallel  # noqa: F401
import secure_aggregation  # noqa: F401
import speed  # noqa: F401
import whole_run  # noqa: F401
from bench_results import Result, Results, write_table
from measuring import Benchmark, Bound, benchmarks

ROOT = Path(__file__).parent.parent
RESULTS, PAGE = ROOT / "benchmarks" / "results.json", ROOT / "docs" / "performance.md"


def run(each: Benchmark, is_quick: bool) -> list[tuple[Bound, Result]]:
    """Measure; once more if a bound is broken, as another process may have been in the way."""
    for attempt in (1, 2):
        samples = each.measure(is_quick)
        found = [(bound, Result.of(samples[bound.name], bound)) for bound in each.bounds if bound.name in samples]
        broken = [bound.name for bound, result in found if not bound.holds(result.median, is_quick)]
        if not broken or attempt == 2:
            break
        print(f"  once more, as these are beyond their bounds: {', '.join(broken)}", flush=True)
    return found


def line(bound: Bound, result: Result, is_quick: bool) -> str:
    """One measured number in words."""
    verdict = "" if bound.holds(result.median, is_quick) else "   BROKEN"
    number = f"{result.median:.3g} ({result.low:.3g} to {result.high:.3g}) {bound.unit}".rstrip()
    return f"  {bound.name:68} {number:28} {bound.in_words(is_quick)}{verdict}"


def measure_all(chosen: list[Benchmark], is_quick: bool, kept: Path | None = None) -> tuple[Results, list[str]]:
    """Every number, and the names of those that break their bounds; `kept`: where numbers are written at once."""
    found, broken = Results({}), []
    for each in chosen:
        started = time.perf_counter()
        print(each.name, flush=True)
        for bound, result in run(each, is_quick):
            print(line(bound, result, is_quick), flush=True)
            found.values[bound.name] = result
            if not bound.holds(result.median, is_quick):
                broken.append(bound.name)
        if kept:
            Results.read(kept).with_those_of(found).write(kept)
        print(f"  in {time.perf_counter() - started:.0f} s", flush=True)
    return found, broken


def choose(words: list[str], is_quick: bool) -> list[Benchmark]:
    """The benchmarks whose names, or those of what they measure, hold one of the words."""

    def names(each: Benchmark) -> str:
        return " ".join([each.name, *(bound.name for bound in each.bounds)])

    wanted = [each for each in benchmarks if not words or any(word in names(each) for word in words)]
    return [each for each in wanted if each.is_quick or not is_quick]


def main() -> int:
    """Measure, write what was found, and say whether all bounds hold."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two minutes, with wide bounds; writes nothing")
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="those whose names hold a word")
    parser.add_argument("--list", action="store_true", help="name them and their bounds, and measure nothing")
    parser.add_argument("--table", action="store_true", help="only write the table again, from results.json")
    arguments = parser.parse_args()
    chosen = choose(arguments.only, arguments.quick)
    if arguments.list:
        for each in chosen:
            print(each.name, *(f"  {bound.name}: {bound.in_words(arguments.quick)}" for bound in each.bounds), sep="\n")
        return 0
    broken: list[str] = []
    if not arguments.table:
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        _, broken = measure_all(chosen, arguments.quick, None if arguments.quick else RESULTS)
    if not arguments.quick:
        write_table(PAGE, Results.read(RESULTS), [bound for each in benchmarks for bound in each.bounds])
    for name in broken:
        print(f"broken: {name}", file=sys.stderr)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
