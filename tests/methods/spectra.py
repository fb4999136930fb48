"""Images, bands and spectra to test layers with, by the definition: the full complex spectrum, in double precision."""

from fractions import Fraction

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

Images = np.ndarray
Band = str | float

bands = st.sampled_from(["dc", "full"]) | st.integers(1, 71).map(lambda hundredths: hundredths / 100)


@st.composite
def two_batches(draw: st.DrawFn) -> tuple[Images, Images]:
    """Signals, images or volumes to learn from and to normalize, of one odd or even shape; the mean may be negative."""
    sizes = draw(
        st.lists(st.integers(1, 7), min_size=1, max_size=2) | st.lists(st.integers(1, 4), min_size=3, max_size=3)
    )
    shape = (draw(st.integers(1, 3)), *sizes)
    values = st.integers(-16, 64).map(lambda sixtyfourths: sixtyfourths / 64)
    learned, given_images = (draw(arrays(np.float64, (2, *shape), elements=values)) for _ in range(2))
    # At a mean of zero the sign hangs on rounding; a test of its own pins that case.
    assume((np.abs(given_images.mean(axis=spatial(given_images))) > 1e-6).all())
    return learned, given_images


def spatial(images: Images) -> tuple[int, ...]:
    """The axes of a batch (N, C, ...) that are not images or channels."""
    return tuple(range(2, images.ndim))


def spectrum_of(images: Images) -> Images:
    return np.fft.fftn(images, axes=spatial(images))


def inside_band(band: Band, *sizes: int) -> Images:
    """The bins of the full spectrum inside a band, in exact arithmetic."""
    inside = np.full(sizes, band == "full")
    inside[(0,) * len(sizes)] = band != "none"
    if isinstance(band, float):
        limit = Fraction(round(band * 100), 100) ** 2
        for place in np.ndindex(*sizes):
            square = sum(Fraction(min(k, n - k), n) ** 2 for k, n in zip(place, sizes, strict=True))
            inside[place] = square <= limit
    return inside
