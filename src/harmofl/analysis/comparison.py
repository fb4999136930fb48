"""Hospitals compared by their surveys alone, and what follows for training, in plain words with its reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

from harmofl.analysis.appearance import Probe
from harmofl.analysis.moments import differences, probe_moments, without_mean
from harmofl.analysis.survey import Survey

ALIKE = 0.2
"""Of the way from chance to certainty: a probe that comes no further does not really tell hospitals apart."""
OTHER_CLASSES = 0.2
"""Share of images that would have to change class for two hospitals to have the same balance."""
OTHER_AMOUNT = 3.0
"""Times as much foreground at one hospital as at another."""
FEW_PATIENTS = 5
UNEVEN = 4.0
"""Times as many training images at one hospital as at another."""
BRIGHTER = 1.0
"""Spreads of single images by which a hospital's brightness must differ for harmonization to be worth it."""
HARDER = 0.1
"""Or the part by which the same mean must make it harder to guess the hospital."""
NOTICEABLE = 0.5
"""Spreads of single images by which a hospital's mean must differ to be named."""


@dataclass(frozen=True)
class Advice:
    """What to do, why, and with which options."""

    kind: str
    title: str
    reason: str
    options: Mapping[str, str] = field(default_factory=dict)
    """Settings by name; "method" stands for --method."""


@dataclass(frozen=True)
class Comparison:
    """Surveys of several hospitals and what follows from them."""

    task: str
    kind: str
    """classification or segmentation."""
    images: str
    """Which images these are, in a word or two."""
    surveys: Mapping[str, Survey]

    @cached_property
    def compared(self) -> dict[str, Survey]:
        """The hospitals that tell enough to be compared, and describe their images by the same numbers."""
        opened = {site: survey for site, survey in self.surveys.items() if survey.is_open}
        lengths = [len(survey.halves[0].mean) for survey in opened.values()]
        usual = max(lengths, key=lengths.count, default=0)
        return {site: survey for site, survey in opened.items() if {len(h.mean) for h in survey.halves} == {usual}}

    @cached_property
    def before(self) -> Probe | None:
        """How often the hospital is guessed from images as they are."""
        return self._probe(harmonized=False)

    @cached_property
    def after(self) -> Probe | None:
        """The same once all images have the same mean (band dc)."""
        return self._probe(harmonized=True)

    def _probe(self, harmonized: bool) -> Probe | None:
        halves = {site: survey.halves for site, survey in self.compared.items()}
        if len(halves) < 2:
            return None
        length = len(next(iter(halves.values()))[0].mean)
        return probe_moments(halves, without_mean(length) if harmonized else None)

    @cached_property
    def differences(self) -> dict[str, dict[str, float]]:
        """What about each hospital's images is unlike the others', in spreads of single images."""
        halves = {site: survey.halves for site, survey in self.compared.items()}
        return differences(halves) if len(halves) > 1 else {}

    @cached_property
    def advice(self) -> list[Advice]:
        """What to do, the most important first."""
        return [*advise_on_looks(self), *advise_on_truth(self), *advise_on_numbers(self)]

    def advice_for(self, norm: str) -> list[Advice]:
        """The advice for a network with such norm layers (`model.norm`): only batch norm keeps statistics."""
        about_statistics = () if norm == "batch" else ("statistics", "harmonize")
        return [each for each in self.advice if each.kind not in about_statistics]

    def to_json(self) -> dict[str, Any]:
        """Plain values for machines."""
        probes = {"as they are": self.before, "harmonized (band dc)": self.after}
        return {
            "task": self.task,
            "images": self.images,
            "sites": {site: survey.to_json() for site, survey in self.surveys.items()},
            "probe": {
                name: {
                    "accuracy": round(probe.accuracy, 4),
                    "chance": round(probe.chance, 4),
                    "per_site": dict(zip(self.compared, (round(part, 4) for part in probe.per_site), strict=True)),
                }
                for name, probe in probes.items()
                if probe
            },
            "differences": self.differences,
            "advice": [asdict(each) for each in self.advice],
        }


def excess(probe: Probe) -> float:
    """How far a probe comes from chance (0) to certainty (1)."""
    return (probe.accuracy - probe.chance) / (1 - probe.chance)


def options_of(advice: Sequence[Advice]) -> dict[str, str]:
    """The settings that some advice comes to; where two name a method, the first counts."""
    options: dict[str, str] = {}
    for each in advice:
        options |= {name: value for name, value in each.options.items() if name not in options}
    return options


# --- how images look -----------------------------------------------------------------------------------------------


def advise_on_looks(comparison: Comparison) -> list[Advice]:
    """Statistics of each hospital's own, or nothing; and what harmonizing does for those who must share one model."""
    before, after = comparison.before, comparison.after
    if before is None or after is None:
        words = "Fewer than two hospitals tell enough about their images to compare how they look."
        return [Advice("unknown", "How alike the images look is not known", words)]
    told = f"From simple numbers about an image, its hospital is guessed right in {percent(before.accuracy)} of cases"
    by_chance = f"{percent(before.chance)} would be chance"
    if excess(before) < ALIKE:
        reason = f"{told}; {by_chance}. The hospitals look alike, and plain averaging (FedAvg) loses little."
        return [Advice("nothing", "Nothing needs to be done about how images look", reason, {"method": "fedavg"})]
    unlike, harmonize = describe_differences(comparison.differences), harmonizing_helps(comparison, before, after)
    if harmonize and "brightness" not in unlike:
        unlike += describe_brightness(comparison.differences)
    reason = (
        f"{told}, where {by_chance}. {unlike}Averaged batch norm statistics fit such hospitals badly, so each should "
        "estimate its own on its own images before it uses a model, as FreshBN does."
    )
    title = "Let each hospital estimate its own batch norm statistics"
    advice = [Advice("statistics", title, reason, {"method": "freshbn"})]
    if harmonize:
        advice.append(
            Advice("harmonize", "Harmonize the images if one model must serve all", explain_harmonizing(after))
        )
    return advice


def explain_harmonizing(after: Probe) -> str:
    """What the same mean for all images does, and for whom it is."""
    return (
        "If all hospitals must use one and the same model: HarmoFL's amplitude normalization gives all images the same "
        "mean (--method harmofl), so that averaged statistics fit better. Hospitals are then told apart in "
        f"{percent(after.accuracy)} of cases. In our results statistics of each hospital's own do as well or better."
    )


def harmonizing_helps(comparison: Comparison, before: Probe, after: Probe) -> bool:
    """Whether the same mean takes something away that tells hospitals apart."""
    brightness = max(abs(own["brightness"]) for own in comparison.differences.values())
    return brightness >= BRIGHTER or excess(before) - excess(after) >= HARDER * excess(before)


def describe_differences(differences: Mapping[str, Mapping[str, float]]) -> str:
    """Name the largest difference of each hospital that has a noticeable one, the three largest in all."""
    largest = [(*max((abs(v), v, name) for name, v in own.items()), site) for site, own in differences.items()]
    named = sorted((each for each in largest if each[0] >= NOTICEABLE), reverse=True)[:3]
    words = [f"{site} has {'more' if value > 0 else 'less'} {name} ({value:+.1f})" for _, value, name, site in named]
    if not words:
        return ""
    unit = "in spreads of single images, compared with the other hospitals"
    return f"{'; '.join(words)} ({unit}). "


def describe_brightness(differences: Mapping[str, Mapping[str, float]]) -> str:
    """Name the hospital whose brightness, which is what harmonizing takes away, differs most."""
    value, site = max(((own["brightness"], site) for site, own in differences.items()), key=lambda each: abs(each[0]))
    if abs(value) < NOTICEABLE:
        return ""
    return f"Brightness differs, too: {site} has {'more' if value > 0 else 'less'} ({value:+.1f}). "


def percent(share: float) -> str:
    """A share in whole percent."""
    return f"{100 * share:.0f} %"


# --- what is in them -----------------------------------------------------------------------------------------------


def advise_on_truth(comparison: Comparison) -> list[Advice]:
    """Personalize where hospitals have other classes, or other amounts of what is to be found."""
    known = {site: survey.balance for site, survey in comparison.surveys.items() if survey.balance}
    if len(known) < 2:
        return []
    if comparison.kind == "classification":
        return _advise_on_classes(known)
    return _advise_on_amounts({site: sum(balance.values()) for site, balance in known.items()})


def _advise_on_classes(known: Mapping[str, Mapping[str, float]]) -> list[Advice]:
    pairs = [(distance(known[a], known[b]), a, b) for a in known for b in known if a < b]
    largest, first, second = max(pairs)
    if largest < OTHER_CLASSES:
        return []
    reason = (
        f"{first} has {_shares(known[first])}; {second} has {_shares(known[second])}. A common last layer would lean "
        "towards the classes that are frequent elsewhere, so each hospital should keep its own."
    )
    return [Advice("personalize", "Personalize the last layer", reason, {"method": "fedper"})]


def distance(first: Mapping[str, float], second: Mapping[str, float]) -> float:
    """Half the sum of differences: the share of images that would have to change class."""
    return sum(abs(first.get(name, 0) - second.get(name, 0)) for name in {*first, *second}) / 2


def _shares(balance: Mapping[str, float]) -> str:
    return ", ".join(f"{percent(share)} {name}" for name, share in balance.items())


def _advise_on_amounts(shares: Mapping[str, float]) -> list[Advice]:
    least, most = min(shares, key=shares.__getitem__), max(shares, key=shares.__getitem__)
    if shares[most] < OTHER_AMOUNT * max(shares[least], 1e-6):
        return []
    reason = (
        f"{most} has {100 * shares[most]:.1f} % foreground, {least} {100 * shares[least]:.1f} %: they cut their images "
        "differently, or have other patients. A last layer of its own lets each hospital learn how much to expect."
    )
    return [Advice("personalize", "Personalize the last layer", reason, {"method": "fedper"})]


# --- how many there are --------------------------------------------------------------------------------------------


def advise_on_numbers(comparison: Comparison) -> list[Advice]:
    """Mind hospitals with few patients, and very uneven numbers of images."""
    surveys, advice = comparison.surveys, []
    few = [site for site, survey in surveys.items() if 0 < survey.patients < FEW_PATIENTS]
    if few:
        reason = f"{', '.join(few)}: fewer than {FEW_PATIENTS} patients to train on. Scores there are noisy."
        advice.append(Advice("patients", "Few patients", reason))
    counts = {site: survey.images for site, survey in surveys.items() if survey.images}
    if counts and max(counts.values()) > UNEVEN * min(counts.values()):
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        reason = (
            f"{most} has {counts[most]} training images, {least} {counts[least]}. Uniform weights let the small one "
            'count as much; federation.weights = "examples" does not.'
        )
        advice.append(Advice("numbers", "Very uneven numbers of images", reason))
    return advice
