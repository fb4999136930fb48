"""What `harmofl deploy approve` shows and does: a person at the hospital reads what a run would do, and decides."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harmofl.deployment.approvals import Approvals
from harmofl.deployment.coordinator import read_options
from harmofl.deployment.kits import SiteKit
from harmofl.deployment.own_images import OwnImages
from harmofl.deployment.policy import apply_own_choices
from harmofl.deployment.run_settings import describe_run, describe_unusual, digests
from harmofl.errors import UsageError, describe
from harmofl.settings import Settings, resolve

NOTHING = "nothing waits for approval here"


def settings_of_file(config: Path, preset: str | None, given: Mapping[str, Any]) -> Settings:
    """The settings that a server would send for a file such as its `run.toml`."""
    return read_options(None, None, preset, config, given).resolve(synthetic=False)[0]


def find_settings(kit: SiteKit, digest: str) -> Settings:
    """The settings that wait under a digest, or under its beginning."""
    waiting = Approvals(kit).waiting()
    matching = [known for known in waiting if known.startswith(digest)]
    if len(matching) != 1:
        raise UsageError(f"{digest!r}: waiting for approval here: {', '.join(waiting) or 'nothing'}")
    try:
        return Settings.model_validate(waiting[matching[0]])
    except ValidationError as error:
        raise UsageError(f"{matching[0]}: {describe(error)}; delete it, and the run will ask again") from None


def describe_request(kit: SiteKit, settings: Settings) -> list[str]:
    """All that a person should know before they decide, a line each."""
    _, method = resolve(file=settings.model_dump(mode="json", exclude_none=True))
    odd = describe_unusual(settings, method)
    heading = "unusual, as in none of the task's presets:" if odd else "all settings are those of the task's presets"
    return [
        f"{digests(settings)[0]}: {describe_run(settings, method)[0]}",
        *(f"  {line}" for line in describe_run(settings, method)[1:]),
        f"  {images_used(kit, settings)}",
        f"  {heading}",
        *(f"    {line}" for line in odd),
    ]


def images_used(kit: SiteKit, settings: Settings) -> str:
    """How many images and patients a run would use here."""
    if kit.data is None:
        return "synthetic images: nothing needs approval"
    try:
        own = OwnImages.of(kit, apply_own_choices(settings, kit))
    except UsageError as error:
        return f"its images cannot be used with these settings: {error}"
    site = own.site
    parts = {"train": site.train, "val": site.val[site.name], "test": site.test[site.name]}
    counts = [f"{part} {len(each)} of {own.num_patients(each)}" for part, each in parts.items()]
    return f"images of patients that it would use: {', '.join(counts)}"


def refuse(kit: SiteKit, beginning: str | None, settings: Settings | None) -> list[str]:
    """Take an approval back, by the beginning of its digest or by the settings; return what became of it, in lines."""
    if not (beginning or settings):
        raise UsageError("--refuse: say which, by its DIGEST or by --config")
    digest = Approvals(kit).refuse(digests(settings)[0] if settings else str(beginning))
    approval = kit.settings.policy.approval
    starts = f'approval = "{approval}" in site.toml: a run that it lets start does so all the same'
    return [f"{digest}: no longer approved", *([starts] if approval != "ask" else [])]


def approve(kit: SiteKit, settings: Settings, runs: int | None) -> str:
    """Approve settings; return their digest."""
    digest = digests(settings)[0]
    Approvals(kit).approve(digest, runs or kit.settings.policy.runs)
    return digest
