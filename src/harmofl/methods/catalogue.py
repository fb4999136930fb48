"""Every method, a few lines each: read this first.

A method of your own is one more `Method(...)`, given to `harmofl.train(method=...)` or to `harmofl.register`.
"""

from __future__ import annotations

from dataclasses import replace

from harmofl.methods.adaptations import OwnLayers
from harmofl.methods.harmonizers import NormalizeAmplitude
from harmofl.methods.method import Method
from harmofl.methods.penalties import ModelContrast, Proximity
from harmofl.methods.server_rules import AdaptiveMoments, NormalizedAverage
from harmofl.methods.sharing import all_but_batch_norm, nothing
from harmofl.methods.steps import PerturbedDescent

fedavg = Method(
    "FedAvg",
    paper="McMahan et al., AISTATS 2017",
    idea="Sites train from the global model; the server averages their models.",
    limit="always",
)

fedprox = Method(
    "FedProx",
    penalties=(Proximity(mu=0.01),),
    paper="Li et al., MLSys 2020",
    idea="A squared distance to the global model holds the local ones back.",
    limit="mu = 0",
)

fednova = Method(
    "FedNova",
    server_rule=NormalizedAverage(),
    requires={"training.optimizer_state": "reset"},  # its derivation assumes momentum that starts at zero
    paper="Wang et al., NeurIPS 2020",
    idea="Updates are divided by the number of effective local steps before they are averaged.",
    limit="equal numbers of local steps",
)

fedadam = Method(
    "FedAdam",
    server_rule=AdaptiveMoments(beta1=0.9, beta2=0.99, tau=1e-3),
    defaults={"federation.server_learning_rate": 1e-2},  # 1 would move every weight by about 1
    paper="Reddi et al., ICLR 2021",
    idea="The server treats the averaged update as a gradient and applies Adam to it.",
    limit="beta1 = 0 and server_learning_rate = tau → ∞",
)

fedbn = Method(
    "FedBN",
    shares=all_but_batch_norm,
    adapt=OwnLayers(),
    paper="Li et al., ICLR 2021",
    idea="Batch norm layers stay at each site.",
    limit="a network without batch norm",
)

moon = Method(
    "MOON",
    penalties=(ModelContrast(mu=1.0, temperature=0.5),),
    paper="Li, He and Song, CVPR 2021",
    idea="Representations are drawn to the global model's and away from the site's previous model's.",
    limit="mu = 0",
)

harmofl = Method(
    "HarmoFL",
    harmonizer=NormalizeAmplitude(band="dc", decay=0.1, schedule="before-training"),
    step=PerturbedDescent(radius=0.05),
    paper="Jiang, Wang and Dou, AAAI 2022",
    idea="Images take the amplitude averaged over all sites; steps descend with the gradient at perturbed weights.",
    limit='band = "none" and radius = 0',
)

local = Method(
    "local",
    shares=nothing,
    idea="A reference: nothing travels, each site selects its own round.",
    limit="a single site",
)

centralized = replace(
    fedavg,
    name="centralized",
    pooled=True,
    paper="",
    idea="A reference: one site trains on the union of all images; scores are per site.",
    limit="a single site",
)
