"""What finished runs show, in words: honest about who is ahead, by how much, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harmofl.displays.words import describe_early_stop
from harmofl.reporting.tables import MethodScores, methods_of, sites_of
from harmofl.runs.finished import FinishedRun


def title_for(runs: Sequence[FinishedRun]) -> str:
    """Name the methods and the task."""
    labels = [method.label for method in methods_of(runs)]
    return f"{join_words(labels) if len(labels) <= 3 else f'{len(labels)} methods'} on {runs[0].task}"


def summarize(runs: Sequence[FinishedRun]) -> list[str]:
    """Say what the records show, whoever is ahead."""
    order = rank_methods(runs)
    sentences = [_who_is_ahead(order, runs)] if order else ["No run has an average test score."]
    sentences += _harmofl_behind(order)
    sentences += _at_the_sites(order, sites_of(runs))
    sentences += _how_sure(order)
    sentences += _references(runs)
    sentences += _early_stops(runs)
    sentences += _failures(runs) + _shortened(runs)
    sentences += _phantoms(runs)
    return sentences


def rank_methods(runs: Sequence[FinishedRun]) -> list[MethodScores]:
    """Order the methods in competition by their average; without one, a method has no place."""
    competing = [method for method in methods_of(runs) if not method.is_reference]
    scored = [method for method in competing if method.average == method.average]
    return sorted(scored, key=lambda method: method.score.rank(method.average), reverse=True)


def _who_is_ahead(order: Sequence[MethodScores], runs: Sequence[FinishedRun]) -> str:
    leader, score = order[0], runs[0].score
    quantity = f"average {runs[0].scored_on} {score.words} over {_count(len(sites_of(runs)), 'hospital')}"
    if len(order) == 1:
        return f"{leader.label} reaches {score.text(leader.average)} {quantity}."
    level = [method.label for method in order if is_level(leader.average, method.average)]
    if len(level) > 1:
        return f"{join_words(level)} are level at {score.text(leader.average)} {quantity}."
    second = order[1]
    gap = score.gap_text(abs(leader.average - second.average))
    direction = "more" if score.higher_is_better else "less"
    return (
        f"{leader.label} is ahead with {score.text(leader.average)} {quantity}, "
        f"{gap} {direction} than {second.label} ({score.text(second.average)})."
    )


def _harmofl_behind(order: Sequence[MethodScores]) -> list[str]:
    own = next((method for method in order if method.runs[0].method == "harmofl"), None)
    if own is None or is_level(order[0].average, own.average):
        return []
    gap = own.score.gap_text(abs(order[0].average - own.average))
    return [f"{own.label} does not win here: it is {gap} behind {order[0].label}."]


def _at_the_sites(order: Sequence[MethodScores], sites: Sequence[str]) -> list[str]:
    if not order:
        return []
    leader = order[0]
    scores = {site: leader.mean_at(site) for site in sites if leader.mean_at(site) == leader.mean_at(site)}
    if len(scores) < 2:
        return []
    *_, worst = best, *_ = sorted(scores, key=lambda site: leader.score.rank(scores[site]), reverse=True)
    texts = {site: leader.score.text(scores[site]) for site in (best, worst)}
    if texts[best] == texts[worst]:
        return []
    sentence = (
        f"{leader.label} does best at {_hospital(best)} ({texts[best]}) "
        f"and worst at {_hospital(worst)} ({texts[worst]})"
    )
    return [sentence + (_compare_sites(scores, order[1]) if len(order) > 1 else "") + "."]


def _compare_sites(scores: Mapping[str, float], second: MethodScores) -> str:
    gaps = {site: second.score.lead(value, over=second.mean_at(site)) for site, value in scores.items()}
    gaps = {site: gap for site, gap in gaps.items() if gap == gap}
    if not gaps:
        return ""
    most, least = max(gaps, key=gaps.__getitem__), min(gaps, key=gaps.__getitem__)
    ahead = sum(gap > 0 and not is_level(gap, 0) for gap in gaps.values())
    where = f"all {len(gaps)}" if ahead == len(gaps) else f"{ahead} of {len(gaps)}"
    text = f"; it is ahead of {second.label} at {where} hospitals"
    if ahead:
        text += f", most at {_hospital(most)} ({second.score.gap_text(gaps[most], signed=True)})"
    if gaps[least] < 0 and not is_level(gaps[least], 0):
        text += f", and furthest behind at {_hospital(least)} ({second.score.gap_text(gaps[least], signed=True)})"
    return text


def _how_sure(order: Sequence[MethodScores]) -> list[str]:
    if len(order) < 2:
        return []
    leader, second = order[:2]
    shared = sorted(leader.averages.keys() & second.averages.keys())
    if max(len(leader.runs), len(second.runs)) == 1:
        return ["This compares one run per method: another seed can turn a small difference around."]
    if len(shared) < 2:
        return [f"{leader.label} and {second.label} ran with different seeds, so their gap is less certain."]
    wins = sum(leader.score.lead(leader.averages[seed], over=second.averages[seed]) > 0 for seed in shared)
    return [f"Seed by seed, {leader.label} is ahead of {second.label} in {wins} of {len(shared)}."]


def _references(runs: Sequence[FinishedRun]) -> list[str]:
    references = [method for method in methods_of(runs) if method.is_reference]
    scores = [f"{method.label} {method.score.text(method.average)}" for method in references]
    return [f"For reference: {join_words(scores)}."] if scores else []


def _failures(runs: Sequence[FinishedRun]) -> list[str]:
    updates = [record for run in runs for record in run.records if record["phase"] == "train"]
    updates = [record for record in updates if record["site"] != "server"]
    failed = [record for record in updates if "error" in record]
    if not failed:
        return []
    sites = [_hospital(str(site)) for site in dict.fromkeys(record["site"] for record in failed)]
    left_out = "was" if len(failed) == 1 else "were"
    said = [f"{len(failed)} of {len(updates)} site updates failed and {left_out} left out ({join_words(sites)})."]
    outliers = dict.fromkeys(record["site"] for record in failed if str(record["error"]).startswith("an outlier"))
    if outliers:
        far = join_words([_hospital(str(site)) for site in outliers])
        said.append(f"Some were outliers, far longer than the others' updates: look at {far}.")
    return said


def _shortened(runs: Sequence[FinishedRun]) -> list[str]:
    rounds = [record["shortened"] for run in runs for record in run.records if record.get("shortened")]
    sites = dict.fromkeys(site for each in rounds for site in each)
    if not sites:
        return []
    named = join_words([_hospital(str(site)) for site in sites])
    return [f"Updates were shortened (federation.clip_updates) in {_count(len(rounds), 'round')}: {named}."]


def _early_stops(runs: Sequence[FinishedRun]) -> list[str]:
    stops = [(run, run.summary["stopped_early"]) for run in runs if run.summary.get("stopped_early")]
    if len(stops) == 1 == len(runs):
        return [f"Training {describe_early_stop(**stops[0][1])}."]
    ended = [f"{run.title}, seed {run.seed}, after round {stop['round']}" for run, stop in stops]
    return [f"Ended early, as their validation scores no longer improved: {'; '.join(ended)}."] if ended else []


def _phantoms(runs: Sequence[FinishedRun]) -> list[str]:
    if not all(run.is_synthetic for run in runs):
        return []
    return ["The images are phantoms, made by this software: they show how methods behave, not how well they diagnose."]


def is_level(first: float, second: float) -> bool:
    """Whether two scores read the same."""
    return abs(first - second) < 0.05


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _hospital(site: str) -> str:
    return f"hospital {site}" if len(site) <= 2 else site  # "A" alone would not read as a place


def join_words(words: Sequence[str]) -> str:
    """Words with commas and a last "and"."""
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)


def missing_sentence(missing: int, total: int, noun: str) -> list[str]:
    """One sentence about runs or cells without scores, if there are any."""
    if not missing:
        return []
    return [f"{missing} of {total} {noun}s {'is' if missing == 1 else 'are'} missing, so this may still change."]
