"""Images and the masks or outlines that belong to them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harmofl.data.layouts.tree import Tree, join, printable
from harmofl.data.samples import Problem


@dataclass
class Pairs:
    """What was paired, by stem as (image, mask), and what was wrong."""

    files: dict[str, tuple[str, str]] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)


def by_stem(tree: Tree, folder: str, *suffixes: str) -> dict[str, str]:
    """Return the files of a folder by their names without suffix; of equal ones, that of the earlier suffix."""
    files: dict[str, str] = {}
    for suffix in suffixes:
        for name in tree.files(folder, suffix):
            files.setdefault(name[: -len(suffix)], join(folder, name))
    return files


def pair(
    tree: Tree, images: Mapping[str, str], masks: Mapping[str, str], mask_is: str, lone_mask_is_fatal: bool = False
) -> Pairs:
    """Pair files of the same stem; `mask_is` names in a message what an image lacks."""
    pairs = Pairs()
    for stem in sorted(images.keys() | masks.keys()):
        if stem not in masks:
            pairs.problems.append(Problem(printable(images[stem]), f"has no {mask_is}"))
        elif stem not in images:
            pairs.problems.append(Problem(printable(masks[stem]), "belongs to no image", lone_mask_is_fatal))
        else:
            refused = [
                Problem(printable(path), reason)
                for path in (images[stem], masks[stem])
                if (reason := tree.refusal(path))
            ]
            pairs.problems += refused
            if not refused:
                pairs.files[stem] = (images[stem], masks[stem])
    return pairs
