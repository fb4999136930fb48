"""Settings of differential privacy."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harmofl.settings.section import Section

AboveZero = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]


class PrivacySettings(Section):
    """How much updates may tell about one site, or about one image: differential privacy."""

    site_level: Literal["none", "central", "local"] = Field(
        "none",
        description="clip each site's update and add noise; central: so much that the sum over sites is private, which "
        "trusts the server (or secure aggregation); local: so much that each update is",
    )
    site_clip: AboveZero = Field(1.0, description="largest Euclidean norm of a site's update")
    site_noise: NotNegative = Field(1.0, description="standard deviation of the noise, in units of privacy.site_clip")
    image_level: bool = Field(
        False, description="train with clipped gradients of single images and noise (DP-SGD), at every site"
    )
    image_clip: AboveZero = Field(1.0, description="largest Euclidean norm of the gradient of one image")
    image_noise: NotNegative = Field(1.0, description="standard deviation of the noise, in units of privacy.image_clip")
    measurement_noise: NotNegative | None = Field(
        None,
        description="standard deviation of the noise on what sites measure of their images (HarmoFL's amplitude, "
        "FedRDN's statistics), in units of the most that a site, or an image, can change it; none: as on updates, or "
        "gradients",
    )
    delta: Annotated[float, Field(gt=0, lt=1)] = Field(
        1e-5, description="the δ at which ε is reported: the probability with which the guarantee may fail"
    )

    @property
    def is_on(self) -> bool:
        """Whether noise hides what sites send."""
        return self.site_level != "none" or self.image_level
