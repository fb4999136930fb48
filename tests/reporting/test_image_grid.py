import numpy as np
import pytest
import torch

from harmofl.reporting.image_grid import image_grid
from harmofl.reporting.style import to_svg


def test_image_grid_clips_and_lays_images_side_by_side() -> None:
    before = np.full((2, 3, 20, 20), 0.25)
    after = torch.full((2, 3, 20, 20), 1.5, requires_grad=True)
    figure = image_grid({"A": {"before": before, "after": after}, "B": {"before": before}})
    strip = figure.axes[1].images[0].get_array()
    assert strip.shape == (20, 20 + 1 + 20, 4)
    assert strip[0, 0].tolist() == [1.0, 1.0, 1.0, 1.0]
    assert strip[0, 20].tolist() == [0.0, 0.0, 0.0, 0.0]
    svg = to_svg(figure)
    assert ">before</text>" in svg
    assert "data:image/png;base64" in svg


def test_gray_image_grid_shows_the_middle_channel() -> None:
    volume = np.stack([np.full((8, 8), value) for value in (0.1, 0.5, 0.9)])[None]
    figure = image_grid({"A": {"before": volume}}, gray=True)
    assert figure.axes[0].images[0].get_array()[0, 0].tolist() == [0.5, 0.5, 0.5, 1.0]


@pytest.mark.parametrize(
    ("shape", "message"),
    [((3, 8, 8), r"A, before should have shape \(n, C, H, W\)"), ((1, 5, 8, 8), "5 channels.*gray=True")],
)
def test_image_grid_names_what_it_cannot_show(shape: tuple[int, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        image_grid({"A": {"before": np.zeros(shape)}})
