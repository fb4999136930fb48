"""What an experiment shows, in words: who is ahead, whether that is more than noise, and where HarmoFL wins."""

from __future__ import annotations

from collections.abc import Sequence

from harmofl.reporting.comparisons import Comparison, compare, p_text
from harmofl.reporting.experiment_figures import Point, words_for
from harmofl.reporting.tables import MethodScores, methods_of, sites_of
from harmofl.reporting.words import is_level, join_words, rank_methods, summarize
from harmofl.runs.finished import FinishedRun


def summarize_experiment(
    runs: Sequence[FinishedRun], comparisons: Sequence[Comparison], points: Sequence[Point]
) -> list[str]:
    """Say who is ahead, how sure that is, where HarmoFL wins, and what else the runs show."""
    lead, *rest = summarize(runs)
    return [
        lead,
        *_is_the_lead_noise(rank_methods(runs)),
        *_best_settings(points),
        *_where_harmofl_wins(runs, comparisons),
        *rest,
    ]


def _is_the_lead_noise(order: Sequence[MethodScores]) -> list[str]:
    if len(order) < 2 or is_level(order[0].average, order[1].average):
        return []
    lead = compare(order[0], order[1])
    if lead is None:
        return []
    tests = f"sign-flip test {p_text(lead.sign_flip_p)}, Wilcoxon test {p_text(lead.wilcoxon_p)}"
    pairs = f"{lead.num_ahead} of {lead.num_pairs} pairs of site and seed"
    return [f"{lead.label} is ahead of {lead.baseline} in {pairs} ({tests}): {lead.verdict}."]


def _best_settings(points: Sequence[Point]) -> list[str]:
    """For each row, the setting or variation at which it is best."""
    sentences = []
    for row in dict.fromkeys(point.row for point in points):
        own = [point for point in points if point.row == row and point.scores.average == point.scores.average]
        if len(own) > 1:
            score = own[0].scores.score
            order = sorted(own, key=lambda point: score.rank(point.scores.average), reverse=True)
            ends = [f"{point.setting} ({score.text(point.scores.average)})" for point in (order[0], order[-1])]
            where = ("at", f"{words_for(own[0].axis)} ") if own[0].axis else ("with", "")
            sentences.append(f"{row} is best {where[0]} {where[1]}{ends[0]} and worst {where[0]} {ends[1]}.")
    return sentences


def _where_harmofl_wins(runs: Sequence[FinishedRun], comparisons: Sequence[Comparison]) -> list[str]:
    """Compare the best of HarmoFL's lines with its reference, site by site."""
    methods = {method.label: method for method in methods_of(runs)}
    own = {method.label for method in methods.values() if method.runs[0].method == "harmofl"}
    candidates = [each for each in comparisons if each.label in own and each.baseline in methods]
    if not candidates:
        return []
    best = max(candidates, key=lambda each: each.difference)
    method, baseline = methods[best.label], methods[best.baseline]
    score = method.score
    gaps = {site: score.lead(method.mean_at(site), over=baseline.mean_at(site)) for site in sites_of(runs)}
    texts = {site: f"{site} ({score.gap_text(gap, signed=True)})" for site, gap in gaps.items()}
    wins = [texts[site] for site, gap in gaps.items() if gap > 0 and not is_level(gap, 0)]
    losses = [texts[site] for site, gap in gaps.items() if gap < 0 and not is_level(gap, 0)]
    wins_at = f"wins at {join_words(wins)}" if wins else "wins nowhere"
    loses_at = f"loses at {join_words(losses)}" if losses else "loses nowhere"
    average = f"{score.gap_text(best.difference, signed=True)} on average, {best.verdict}"
    return [f"Against {best.baseline}, {best.label} {wins_at}; it {loses_at} ({average})."]
