"""How a site scores a model that it received: on its own images, and as it would use the model there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import torch

from harmofl.data.facts import DataFacts
from harmofl.data.images import ImageSet, Site
from harmofl.devices import to_device
from harmofl.displays.profiling import part
from harmofl.errors import RefusalError
from harmofl.federation.sampling import take_sample
from harmofl.methods.method import Method
from harmofl.methods.model import Model
from harmofl.runs.live_samples import LiveSamples
from harmofl.runs.model_folder import write_model
from harmofl.settings import Settings
from harmofl.states import evaluating, restoring
from harmofl.tasks.scorers import Scores
from harmofl.tasks.scoring import Look, UndefinedScoreError, score
from harmofl.tasks.task import Task


@dataclass(frozen=True)
class SiteScoring:
    """Scores the model of one site; the images may come from several, if one place has them all.

    Args:
        site: whose images they are.
        task: how images are scored.
        method: says how a model is adapted to a site before it is used there.
        settings: of the run.
        model: the site's workspace, in which the received model is.
        device: where the model is.
        facts: of the images, for the description of a model that is written; needed with `model_folder`.
        model_folder: where to write the selected model; None if the server writes it.
        samples: where to leave an image for the run's live page, if anybody may watch it.
    """

    site: Site
    task: Task
    method: Method
    settings: Settings
    model: Model
    device: torch.device
    facts: DataFacts | None
    model_folder: Path | None
    samples: LiveSamples | None

    def score(self, round_number: int) -> dict[str, dict[str, Scores]]:
        """Return validation and test scores of the model of a round, by the site that the images come from."""
        scores: dict[str, dict[str, Scores]] = {"val": {}, "test": {}}
        for name in self.site.test:
            looks = {"val": self._look(name, round_number), "test": None}
            with self._adapt_to(name):
                for phase, images in (("val", self.site.val[name]), ("test", self.site.test[name])):
                    with suppress(UndefinedScoreError):  # the round has fewer scores then, and loses to one with more
                        scores[phase][name] = self._score(images, look=looks[phase])
        return scores

    def test(self, round_number: int) -> dict[str, dict[str, Scores]]:
        """Return test scores with every metric, and write the model as this site uses it if it keeps one."""
        scores = {}
        for name, images in self.site.test.items():
            with self._adapt_to(name):
                self._write_model(name, round_number)
                try:
                    scores[name] = self._score(images, thorough=True)
                except UndefinedScoreError as error:
                    raise RefusalError(str(error)) from None
        return {"test": scores}

    def _score(self, images: ImageSet, thorough: bool = False, look: Look | None = None) -> Scores:
        with evaluating(self.model), part("scoring"):
            return score(self.model, self.task, self.settings, images, thorough, look)

    def _write_model(self, name: str, round_number: int) -> None:
        if self.model_folder and self.facts:
            folder = self.model_folder if name == self.site.name else self.model_folder.with_name(name)
            write_model(folder, self.model, self.task, self.settings, self.facts, [name], round_number)

    def _look(self, name: str, round_number: int) -> Look | None:
        """Return a function that leaves one of the scored images for the live page; None if it shows none."""
        samples, classes = self.samples, self.task.classes_of(self.settings.data)
        if samples is None or self.settings.data.dimensions != 2:
            return None
        return lambda batch, logits: samples.write(take_sample(batch, logits, classes, name, round_number))

    @contextmanager
    def _adapt_to(self, name: str) -> Iterator[None]:
        """Adapt the model to a site's own images for a block, as its method says; then put it back."""
        adaptation = self.method.adapt
        if not adaptation.at_every_site:
            yield
            return
        batches = self.site.train_of[name].batches(max(2, self.settings.training.batch_size))
        with restoring([*self.model.parameters(), *self.model.buffers()]):
            with part("scoring"):
                adaptation.adapt(self.model, (to_device(batch.images, self.device) for batch in batches))
            yield
