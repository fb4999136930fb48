"""The sheet of sample images of a folder."""

import csv
import io
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from PIL import Image

from harmofl import labels, registry
from harmofl.data.folder import ImageFolder
from harmofl.reporting.contact_sheet import _evenly, _spread, contact_sheet
from harmofl.reporting.outlines import OUTLINES
from harmofl.reporting.style import INK, to_png
from harmofl.settings import resolve

SIZE = 16
REAL = Path(__file__).parents[3] / "shared" / "data" / "nuclei-tiles"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARMOFL_CACHE", str(tmp_path / "cache"))


def write(root: Path, site: str, number: int, pixels: np.ndarray, **truth: str) -> dict[str, str]:
    name = f"{site}-{number}.png"
    Image.fromarray(pixels.astype(np.uint8)).save(root / name)
    return {"site": site, "image": name} | truth


def opened(task: str, root: Path, rows: list[dict[str, str]], **settings: Any) -> ImageFolder:
    with open(root / "manifest.csv", "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    overrides = {f"data.{name}": value for name, value in settings.items()}
    data = resolve(task, "fedavg", "smoke", overrides={"data.folder": str(root), "data.size": SIZE} | overrides)[0].data
    return registry.tasks.find(task).open_folder(data)


def grey_sites(root: Path, counts: dict[str, int]) -> list[dict[str, str]]:
    """Grey noise; every other mask holds a square of 1 and one of 2."""
    random = np.random.default_rng(0)
    mask = np.zeros((SIZE, SIZE), np.uint8)
    mask[3:8, 3:8], mask[9:14, 9:14] = 1, 2
    Image.fromarray(mask).save(root / "mask.png")
    Image.fromarray(0 * mask).save(root / "empty.png")
    return [
        write(root, site, number, random.integers(0, 255, (SIZE, SIZE)), mask=["empty.png", "mask.png"][number % 2])
        for site, count in counts.items()
        for number in range(count)
    ]


def words(figure: Figure) -> list[str]:
    """All but the names of files."""
    return [word for word in all_words(figure) if not word.endswith(".png")]


def all_words(figure: Figure) -> list[str]:
    return [text.get_text() for axes in figure.axes for text in axes.texts]


def test_one_row_per_site_with_its_name_and_number_of_images(tmp_path: Path) -> None:
    folder = opened("segmentation", tmp_path, grey_sites(tmp_path, {"north": 12, "south": 1}))
    figure = contact_sheet(registry.tasks.find("segmentation"), folder)
    assert len(figure.axes) == 2
    assert words(figure) == ["north", "12 images", "south", "1 image"]
    assert figure.texts[0].get_text() == "Segmentation of your own images: images of each site"


def test_every_image_has_its_files_name_below_it_where_it_has_room(tmp_path: Path) -> None:
    long = "A-VERY-LONG-NAME-OF-A-HOSPITAL-WHOSE-IMAGES"
    folder = opened("segmentation", tmp_path, grey_sites(tmp_path, {"north": 3, long: 8}))
    figure = contact_sheet(registry.tasks.find("segmentation"), folder)
    figure.draw_without_rendering()
    of_long, of_north = figure.axes
    assert [text.get_text() for text in of_north.texts[2:]] == ["north-0.png", "north-1.png", "north-2.png"]
    boxes = [text.get_window_extent() for text in of_long.texts[2:]]
    assert len({text.get_text() for text in of_long.texts[2:]}) == len(boxes) == 8  # shortened, but not to the same
    assert all(one.x1 < other.x0 for one, other in itertools.pairwise(boxes))
    below = of_long.get_window_extent()
    assert all(box.y1 <= below.y0 for box in boxes)
    assert all(box.y0 >= of_north.get_window_extent().y1 for box in boxes)


def test_masks_are_outlined_one_colour_per_class(tmp_path: Path) -> None:
    folder = opened("segmentation", tmp_path, grey_sites(tmp_path, {"north": 12}))
    figure = contact_sheet(registry.tasks.find("segmentation"), folder, columns=3)
    outlines = figure.axes[0].collections
    colours = [tuple(each.get_edgecolor()[0]) for each in outlines]
    assert [colour for colour in colours if colour != to_rgba(INK)] == [to_rgba(colour) for colour in OUTLINES[:2]]
    assert all(len(each.get_paths()[0].to_polygons()) == 3 for each in outlines)  # those with something in their mask
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["label 1", "label 2"]


def test_grey_images_are_shown_in_grey_and_free_columns_are_left_free(tmp_path: Path) -> None:
    folder = opened("segmentation", tmp_path, grey_sites(tmp_path, {"north": 2}))
    (shown,) = contact_sheet(registry.tasks.find("segmentation"), folder, columns=4).axes[0].images
    strip = shown.get_array()
    assert strip.shape == (SIZE, 4 * (SIZE + 1) - 1, 4)
    assert np.array_equal(strip[..., 0], strip[..., 2])
    assert (strip[:, :SIZE, 3] == 1).all()
    assert (strip[:, 2 * (SIZE + 1) :, 3] == 0).all()


def test_the_middle_slice_is_shown_of_one_with_neighbours(tmp_path: Path) -> None:
    folder = opened("segmentation", tmp_path, grey_sites(tmp_path, {"north": 1}), neighbours=1)
    (shown,) = contact_sheet(registry.tasks.find("segmentation"), folder, columns=1).axes[0].images
    original = np.asarray(Image.open(tmp_path / "north-0.png")) / 255
    assert np.allclose(shown.get_array()[..., 0], original, atol=1e-6)


def test_colours_and_classes_are_shown(tmp_path: Path) -> None:
    red = np.zeros((SIZE, SIZE, 3))
    red[..., 0] = 255
    rows = [write(tmp_path, "north", number, red, label=label) for number, label in enumerate("aaaab")]
    figure = contact_sheet(registry.tasks.find("classification"), opened("classification", tmp_path, rows), columns=2)
    assert words(figure) == ["north", "5 images", "a", "b"]
    assert np.array_equal(figure.axes[0].images[0].get_array()[0, 0], [1, 0, 0, 1])


def test_a_site_without_a_readable_image_says_so(tmp_path: Path) -> None:
    rows = grey_sites(tmp_path, {"north": 3, "south": 2})
    for path in tmp_path.glob("south-*.png"):
        path.write_text("nothing")
    figure = contact_sheet(registry.tasks.find("segmentation"), opened("segmentation", tmp_path, rows))
    assert words(figure)[2:] == ["cannot be shown", "south", "0 images"]


def test_data_on_which_training_would_fail_are_shown_as_well(tmp_path: Path) -> None:
    rows = grey_sites(tmp_path, {"north": 4})
    Image.new("L", (SIZE, SIZE), 200).save(tmp_path / "empty.png")
    figure = contact_sheet(
        registry.tasks.find("segmentation"), opened("segmentation", tmp_path, rows, classes=["0", "1", "2"])
    )
    assert words(figure) == ["north", "4 images"]
    lost = opened("segmentation", tmp_path, [row | {"image": "lost.png"} for row in rows])
    assert not contact_sheet(registry.tasks.find("segmentation"), lost).axes


@pytest.mark.parametrize(
    "name", ["M" * 30, "i" * 60, "大阪大学医学部附属病院 放射線科", "Klinik für Diagnostische Radiologie"]
)
def test_the_names_of_sites_have_room(tmp_path: Path, name: str) -> None:
    figure = contact_sheet(
        registry.tasks.find("segmentation"), opened("segmentation", tmp_path, grey_sites(tmp_path, {name: 4, "B": 4}))
    )
    figure.draw_without_rendering()  # and without a warning of missing letters
    for axes in figure.axes:
        box = axes.texts[0].get_window_extent()
        assert box.x0 >= 0
        assert box.x1 < axes.get_window_extent().x0


def test_names_in_letters_that_no_font_here_has_are_spelled_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(labels, "installed_fonts", lambda: (labels.OWN_FONT,))
    rows = grey_sites(tmp_path, {"東京": 4, "B": 4})
    contact_sheet(registry.tasks.find("segmentation"), opened("segmentation", tmp_path, rows))
    assert "no font here has the letters of some sites' names: 東京 as DongJing; install a font" in caplog.text


def test_images_are_spread_over_patients() -> None:
    patients = np.repeat(np.arange(20), 5)
    chosen = _spread(patients, np.ones(100, np.int64), [1], 8)
    assert len(set(patients[chosen])) == 8
    assert patients[chosen][0] < 3
    assert patients[chosen][-1] > 16


def test_the_middle_of_what_holds_something_is_chosen() -> None:
    kinds = np.array([0, 0, 1, 1, 1, 0, 0, 0, 0, 0])
    assert _spread(np.zeros(10, np.int64), kinds, [1], 1).tolist() == [3]
    assert _spread(np.zeros(10, np.int64), 0 * kinds, [1], 1).tolist() == [5]


def test_classes_take_turns() -> None:
    kinds = np.array([0] * 9 + [1]).repeat(10)
    chosen = _spread(np.arange(100) % 10, kinds, [0, 1], 4)
    assert kinds[chosen].tolist() == [0, 1, 0, 1]


def test_patients_with_few_images_leave_their_place_to_others() -> None:
    assert _evenly([1, 9, 2], 8) == [1, 5, 2]
    assert _evenly([1, 1], 8) == [1, 1]


@pytest.mark.skipif(not REAL.is_dir(), reason=f"the real images are not at hand: {REAL}")
def test_real_tiles_become_a_sheet_of_about_1200_pixels() -> None:
    task = registry.tasks.find("segmentation")
    data = resolve("segmentation", "fedavg", "small", overrides={"data.folder": str(REAL)})[0].data
    png = to_png(contact_sheet(task, task.open_folder(data)))
    width, height = Image.open(io.BytesIO(png)).size
    assert (width, 800 < height < 1000) == (1216, True)
