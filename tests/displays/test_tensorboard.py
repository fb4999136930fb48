from harmofl.displays.tensorboard import numbers_in
from harmofl.events import RoundFinished, RunStarted, SiteAnswered, SiteScored


def test_every_number_has_a_curve_per_site() -> None:
    assert numbers_in(SiteAnswered(1, "A", "train", {"loss": 0.5, "drift": 2.0})) == {
        "train-loss/A": 0.5,
        "train-drift/A": 2.0,
    }
    assert numbers_in(SiteScored(1, "B", "test", {"metric": 0.75})) == {"test-metric/B": 0.75}
    assert numbers_in(RoundFinished(2, 0.5, 3.0, 0.25)) == {
        "train-loss/server": 0.5,
        "train-seconds/server": 3.0,
        "train-previous_val/server": 0.25,
    }
    assert numbers_in(RunStarted("t", "m", "M", (), 1, 0, "dice", "%")) == {}
