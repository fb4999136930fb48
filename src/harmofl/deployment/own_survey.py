"""A hospital's survey: averages of its training images, told before training if its own rules allow it."""

from __future__ import annotations

from typing import Any

from harmofl import registry
from harmofl.analysis.hospital_surveys import surveyed_site
from harmofl.analysis.survey import survey_site
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.own_images import OwnImages
from harmofl.deployment.policy import refuse_few_images, refuse_windows, remember
from harmofl.errors import RefusalError
from harmofl.settings import Settings

SURVEYS = "surveys.json"
OTHER_IMAGES = (
    "averages of other images have been told before: the difference could give one of them away "
    f"(the hospital allows it by deleting {SURVEYS} in its state folder)"
)


def answer_survey(kit: SiteKit, settings: Settings) -> dict[str, Any]:
    """At a hospital: tell averages of its training images, if it allows that."""
    if not kit.settings.surveys:
        raise RefusalError("this hospital tells nothing of its images before training (surveys = false)")
    refuse_windows(settings, kit)
    images = OwnImages.of(kit, settings)
    if kit.data is not None:
        refuse_few_images(images, kit.settings.policy, only_training=True)
    remember(kit.state(SURVEYS), images.choice, OTHER_IMAGES)
    task, fewest = registry.tasks.find(settings.task), settings.data.min_images_for_amplitude
    surveyed = surveyed_site(task, images.settings, images.own_name, images.source, fewest)
    return survey_site(images.own_name, surveyed).to_json()
