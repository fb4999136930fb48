"""Combinations of pieces among which the recommended recipe is chosen: see docs/protocol.md.

Those that are a method of the catalogue already are named in the plans themselves.
"""

from __future__ import annotations

import harmofl
from harmofl.methods.control_variates import ControlVariates
from harmofl.methods.one_pass_steps import MomentumPerturbedDescent
from harmofl.methods.site_normalization import NormalizeBySite

PAPERS = "a combination of methods of the catalogue"

harmofl.register(
    harmofl.Method(
        "FedRDN with Momentum-SAM",
        harmonizer=NormalizeBySite(),
        step=MomentumPerturbedDescent(),
        paper=PAPERS,
        idea="Random sites' normalization in training, and one-pass perturbation.",
        limit="radius = 0, and every site's images have mean 0 and deviation 1",
    )
)
harmofl.register(
    harmofl.Method(
        "FedRDN with SCAFFOLD",
        harmonizer=NormalizeBySite(),
        step=ControlVariates(),
        requires={"federation.weights": "uniform"},
        paper=PAPERS,
        idea="Random sites' normalization in training, and steps corrected by control variates.",
        limit="one local step of plain gradient descent a round, and images of mean 0 and deviation 1",
    )
)
