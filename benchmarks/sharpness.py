"""How flat the selected models of runs are: the sharpness of `harmofl landscape` alone, without its planes.

    python benchmarks/sharpness.py runs/one-pass/exact runs/one-pass/momentum-sam --out results/one-pass/sharpness.json

Every folder holds runs seed-0, seed-1, …; the file has the mean rise of the training loss over sites, by seed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from harmofl.analysis.landscape import loss_rises
from harmofl.analysis.loaded_runs import load_runs, open_images
from harmofl.analysis.results import Options
from harmofl.files import write_whole

OPTIONS = Options(points=9, span=0.1, local_epochs=3, images=100, directions=20, growths=2, seed=0)


def sharpness_of(paths: list[Path]) -> Iterator[float]:
    """The mean rise over sites and directions, of one run on the same images after the other."""
    runs = load_runs(paths, "cpu")
    source, _ = open_images(runs[0].task, runs[0].settings, runs[0].finished.facts)
    sites = runs[0].load_sites(source)
    for run in runs:
        rises = []
        for site in sites:
            own = run.copy_for(site.name)
            batches = list(own.batches(site, OPTIONS.images, OPTIONS.seed))
            rises.append(np.mean(list(loss_rises(own.models[site.name].network, batches, own, OPTIONS))))
        yield float(np.mean(rises))


def main() -> None:
    """Measure, seed by seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", type=Path, nargs="+", metavar="FOLDER")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    found: dict[str, dict[str, float]] = {folder.name: {} for folder in arguments.folders}
    for seed in sorted(path.name for path in arguments.folders[0].glob("seed-*/")):
        for folder, value in zip(
            arguments.folders, sharpness_of([folder / seed for folder in arguments.folders]), strict=True
        ):
            found[folder.name][seed] = round(value, 4)
    write_whole(arguments.out, json.dumps(found, indent=1) + "\n")
    for name, values in found.items():
        print(f"{name:28} {np.mean(list(values.values())):.3f} ({np.std(list(values.values()), ddof=1):.3f})")


if __name__ == "__main__":
    main()
