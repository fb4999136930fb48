"""Every method, a few lines each: read this first.

A method of your own is one more `Method(...)`, given to `harmofl.train(method=...)` or to `harmofl.register`.
"""

from __future__ import annotations

from dataclasses import replace

from harmofl.methods.adaptations import OwnLayers, SiteStatistics
from harmofl.methods.adaptive_step import AdaptivePerturbedDescent
from harmofl.methods.amplitude_alignment import AlignAmplitude
from harmofl.methods.control_variates import ControlVariates
from harmofl.methods.dynamic_regularization import DynamicAverage, DynamicRegularizer
from harmofl.methods.fixed_statistics import FixedStatistics
from harmofl.methods.harmonizers import NormalizeAmplitude
from harmofl.methods.method import Method, Where
from harmofl.methods.one_pass_steps import GlobalPerturbedDescent, MomentumPerturbedDescent
from harmofl.methods.penalties import ModelContrast, Proximity
from harmofl.methods.personal_model import PersonalModel
from harmofl.methods.robust_rules import GeometricMedian, Krum, Median, MultiKrum, TrimmedMean
from harmofl.methods.server_rules import AdaptiveMoments, NormalizedAverage, ServerMomentum
from harmofl.methods.sharing import all_but_batch_norm, all_but_last_layer, all_but_statistics, nothing
from harmofl.methods.site_normalization import NormalizeBySite
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
    # Its derivation assumes momentum that starts at zero; with Adam a step counts as one, whatever came before.
    requires_where=(Where({"training.optimizer": "sgd"}, {"training.optimizer_state": "reset"}),),
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

freshbn = Method(
    "FreshBN",
    adapt=SiteStatistics(),
    requires={"model.norm": "batch"},  # no other layer has statistics to estimate
    paper="our recommendation, after AdaBN (Li et al., Pattern Recognition 2018)",
    idea="FedAvg; before a site uses a model, it estimates batch norm statistics afresh on its own images.",
    limit="always in what is trained and travels; a site's images then pass statistics of their own",
)

fedavgm = Method(
    "FedAvgM",
    server_rule=ServerMomentum(server_momentum=0.9),
    paper="Hsu, Qi and Brown, 2019",
    idea="The server keeps momentum from round to round.",
    limit="server_momentum = 0",
)

scaffold = Method(
    "SCAFFOLD",
    step=ControlVariates(),
    requires={"federation.weights": "uniform"},  # the variates' mean is plain, so the models' must be
    paper="Karimireddy et al., ICML 2020",
    idea="Steps are corrected by the difference between the mean gradient of all sites and the site's own.",
    limit="one local step of plain gradient descent a round",
)

feddyn = Method(
    "FedDyn",
    penalties=(DynamicRegularizer(alpha=0.01),),
    server_rule=DynamicAverage(),
    paper="Acar et al., ICLR 2021",
    idea="Each site's loss is changed by what it has learned before, so that sites agree where the sum is least.",
    limit="never: in the first round the server already moves twice as far",
)

silobn = Method(
    "SiloBN",
    shares=all_but_statistics,
    adapt=OwnLayers(),
    paper="Andreux et al., DART 2020",
    idea="Statistics of batch norm layers stay at each site; their weights travel.",
    limit="a network without batch norm",
)

fedper = Method(
    "FedPer",
    shares=all_but_last_layer,
    paper="Arivazhagan et al., 2019",
    idea="The last layer stays at each site.",
    limit="a single site",
)

fixbn = Method(
    "FixBN",
    step=FixedStatistics(exploration=0.5),
    requires={"model.norm": "batch"},  # no other layer has statistics that could be fixed
    paper="Zhong, Chen and Chao, 2023",
    idea="After a part of the rounds, batch norm is trained with the averaged statistics, which no longer change.",
    limit="exploration = 1",
)

fedwon = Method(
    "FedWon",
    requires={"model.norm": "weight-standardization"},
    paper="Zhuang and Lyu, ICLR 2024",
    idea="The network has no norm layers: the weights of its convolutions are standardized instead.",
    limit="always, on its own network",
)

fedrdn = Method(
    "FedRDN",
    harmonizer=NormalizeBySite(),
    paper="Yan et al., CVPR 2025",
    idea="Training images are normalized with the mean and deviation of a random site, test images with their own.",
    limit="every site's images have mean 0 and deviation 1",
)

ditto = Method(
    "Ditto",
    step=PersonalModel(pull=1.0),
    paper="Li et al., ICML 2021",
    idea="Each site trains a model of its own beside the global one and held to it; the site uses its own.",
    limit="pull → ∞: every personal model is then the global one, which is FedAvg's always",
)

momentum_sam = Method(
    "Momentum-SAM",
    step=MomentumPerturbedDescent(),
    paper="Becker, Altrock and Risse, 2024",
    idea="Steps descend with the gradient at weights perturbed along the optimizer's momentum, in a single pass.",
    limit="radius = 0, or an optimizer without momentum",
)

fedlesam = Method(
    "FedLESAM",
    step=GlobalPerturbedDescent(),
    paper="Fan et al., ICML 2024",
    idea="Steps descend with the gradient at weights perturbed along the difference of the last two global models.",
    limit="radius = 0",
)

fedasam = Method(
    "FedASAM",
    step=AdaptivePerturbedDescent(adaptive_radius=0.5, offset=0.01),
    paper="Caldarola, Caputo and Ciccone, ECCV 2022",
    idea="Steps descend with the gradient at perturbed weights, where every weight moves in proportion to its size.",
    limit="adaptive_radius = 0",
)

sitealign = Method(
    "SiteAlign",
    harmonizer=AlignAmplitude(band="full", max_gain=10.0),
    step=PerturbedDescent(radius=0.0),
    paper="after Jiang, Wang and Dou, AAAI 2022",
    idea="Images are filtered by the mean amplitude of all sites over their own site's, which keeps how they differ.",
    limit='band = "none" and radius = 0',
)

median = Method(
    "Median",
    server_rule=Median(),
    paper="Yin et al., ICML 2018",
    idea="The server takes the median of the sites' updates, number by number, which one bad site cannot spoil.",
    limit="one or two sites",
)

trimmed_mean = Method(
    "Trimmed mean",
    server_rule=TrimmedMean(trimmed=0.2),
    paper="Yin et al., ICML 2018",
    idea="The server leaves out the largest and the smallest updates, number by number.",
    limit="trimmed = 0 and equal site weights",
)

krum = Method(
    "Krum",
    server_rule=Krum(outliers=1),
    paper="Blanchard et al., NeurIPS 2017",
    idea="The server takes the update of the site that lies nearest to its neighbours.",
    limit="a single site",
)

multi_krum = Method(
    "Multi-Krum",
    server_rule=MultiKrum(outliers=1),
    paper="Blanchard et al., NeurIPS 2017",
    idea="The server averages all updates but the one that lies farthest from its neighbours.",
    limit="outliers = 0 and equal site weights",
)

geometric_median = Method(
    "Geometric median",
    server_rule=GeometricMedian(),
    paper="Pillutla et al., IEEE TSP 2022",
    idea="The server takes the point whose distances to all sites' updates sum to the least.",
    limit="one or two sites",
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
