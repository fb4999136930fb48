import json

from harmofl.runs.selection import Selection


def test_the_best_mean_score_is_selected_and_the_earlier_round_where_scores_are_equal() -> None:
    selection = Selection(per_site=False, best={})
    for number, scores in enumerate([{"A": 0.1, "B": 0.5}, {"A": 0.5, "B": 0.5}, {"A": 0.4, "B": 0.6}], start=1):
        selection = selection.after(number, scores)
    assert selection.round_for("A") == selection.round_for("B") == 2
    assert selection.rounds() == {2}


def test_the_lowest_is_selected_of_a_score_where_lower_is_better() -> None:
    selection = Selection(per_site=False, best={}, higher_is_better=False)
    for number, distance in enumerate([5.0, 2.0, 2.0, 3.0], start=1):
        selection = selection.after(number, {"A": distance})
    assert selection.round_for("A") == 2


def test_a_round_that_more_sites_scored_comes_before_a_better_score_of_fewer() -> None:
    selection = Selection(per_site=False, best={}).after(1, {"A": 0.2, "B": 0.2}).after(2, {"A": 0.9})
    assert selection.round_for("A") == 1
    assert Selection(per_site=False, best={}).after(1, {"A": 0.9}).after(2, {"A": 0.2, "B": 0.2}).round_for("A") == 2


def test_each_site_selects_its_own_round_where_nothing_is_shared() -> None:
    selection = Selection(per_site=True, best={})
    selection = selection.after(1, {"A": 0.9, "B": 0.1}).after(2, {"A": 0.8, "B": 0.3}).after(3, {"A": 0.9})
    assert (selection.round_for("A"), selection.round_for("B")) == (1, 2)
    assert selection.rounds() == {1, 2}


def test_a_round_that_nobody_scored_changes_nothing() -> None:
    selection = Selection(per_site=False, best={}).after(1, {"A": 0.5})
    assert selection.after(2, {}) == selection


def test_it_survives_a_checkpoint() -> None:
    selection = Selection(per_site=True, best={}, higher_is_better=False).after(1, {"A": 0.1, "B": 1 / 3})
    assert Selection.from_json(json.loads(json.dumps(selection.to_json()))) == selection


def test_rounds_without_improvement_count_from_the_best_round_and_of_own_models_from_the_latest() -> None:
    shared = Selection(per_site=False, best={})
    assert shared.rounds_without_improvement(3) == 0
    for number, score in enumerate([0.5, 0.6, 0.6, 0.55], start=1):
        shared = shared.after(number, {"A": score})
    assert shared.rounds_without_improvement(4) == 2
    own = Selection(per_site=True, best={}).after(1, {"A": 0.9, "B": 0.1}).after(2, {"A": 0.8, "B": 0.3})
    assert own.rounds_without_improvement(4) == 2


def test_a_site_that_keeps_its_later_scores_to_itself_does_not_choose_the_round() -> None:
    selection = Selection(per_site=False, best={}).after(1, {"A": 0.5, "B": 0.5, "C": 1.0})
    selection = selection.after(2, {"A": 0.7, "B": 0.7}).after(3, {"A": 0.6, "B": 0.6, "C": 1.0})
    assert selection.round_for("A") == 2  # by A and B, who scored all three


def test_of_five_honest_sites_a_sixth_that_lies_does_not_choose_the_round_by_the_median() -> None:
    rounds = [0.5, 0.6, 0.7, 0.65]
    honest = [{f"site-{site}": score + site / 100 for site in range(5)} for score in rounds]
    lies = [1.0, 0.0, 0.0, 0.0]

    def chosen(robust: bool) -> int:
        selection = Selection(per_site=False, best={}, robust=robust)
        for number, (scores, lie) in enumerate(zip(honest, lies, strict=True), start=1):
            selection = selection.after(number, scores | {"liar": lie})
        return selection.round_for("site-0")

    assert chosen(robust=False) == 1  # as the paper selects, and one site could always
    assert chosen(robust=True) == 3


def test_checkpoints_of_before_have_no_single_scores_and_are_still_read() -> None:
    old = {"per_site": False, "best": {"average": {"round": 3, "score": 0.5, "num_sites": 2}}, "higher_is_better": True}
    assert Selection.from_json(old).after(4, {"A": 0.9, "B": 0.9}).round_for("A") == 4
