"""`harmofl deploy …`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from harmofl.cli import existing, membership, reading
from harmofl.cli.completion import complete_engine
from harmofl.cli.loggers import Log, LogTo, open_loggers
from harmofl.cli.membership import WithKeys, describe_kit
from harmofl.cli.options import Assignments, Method, PluginFiles, Preset, Quiet, Resume, Seed, Task

deploy_app = typer.Typer(
    help="Train over a real network: each hospital on its own machine, on Flower, NVIDIA FLARE or a plugin.",
    no_args_is_help=True,
)


HERE = Path()

Kit = Annotated[Path, typer.Argument(help="A party's folder; the current one if not given.", metavar="[DIR]")]


@deploy_app.command("init")
def init(
    engine: Annotated[
        str,
        typer.Option(
            help="What carries the messages: flower, nvflare, or a plugin's.",
            metavar="ENGINE",
            autocompletion=complete_engine,
        ),
    ],
    sites: Annotated[str, typer.Option(help="The hospitals' names, with commas between them.", metavar="A,B,C")],
    server: Annotated[
        str, typer.Option(help="How sites reach the server: a host name or an address.", metavar="HOST[:PORT]")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist, or be empty.")],
    task: Annotated[
        list[str],
        typer.Option(
            "--task", help="A task that the sites will accept, unless they change it; may be given several times."
        ),
    ] = [],  # noqa: B006
    synthetic: Annotated[
        bool, typer.Option("--synthetic", help="Synthetic images at every site, to try the federation.")
    ] = False,
    name: Annotated[str, typer.Option(help="The federation's name.")] = "federation",
    with_keys: WithKeys = None,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Make a folder for each party: settings, certificates, start script, and a README that says what to do.

    Each hospital makes its own key, with `harmofl deploy join`; with --synthetic, for a trial, keys are made here.

    For three hospitals:  harmofl deploy init --engine flower --sites A,B,C --server fl.example.org --out kits

    To try it on one machine, sites such as hospital-0,hospital-1 (see `harmofl tasks`), --server localhost --synthetic
    """
    from harmofl.deployment.provisioning import make_federation, make_kits, parse_sites

    federation = make_federation(engine, server, parse_sites(sites), name)
    make_kits(federation, out, task, synthetic, with_keys)
    print(f"{out / 'server'}: for the server's machine")
    for site in federation.sites:
        print(describe_kit(out, site))
    if (out / "authority").exists():
        print(f"{out / 'authority'}: keep it offline")
    print(f"What to do with them: {out / 'README.md'}")


@deploy_app.command("site")
def site(
    name: Annotated[str, typer.Argument(help="The hospital's name in the federation.")],
    out: Annotated[Path, typer.Option("--out", help="The folder to make; it must not exist, or be empty.")],
    task: Annotated[
        list[str],
        typer.Option("--task", help="A task that may be trained here; may be given several times."),
    ] = [],  # noqa: B006
    synthetic: Annotated[bool, typer.Option("--synthetic", help="Synthetic images, to try it.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """At a hospital in a federation that others run: make its folder, with the site.toml that decides, and no keys.

    For example:  harmofl deploy site Aachen --task segmentation --out harmofl-site
    """
    from harmofl.deployment.guests import make_guest

    make_guest(out, name, task, synthetic)
    print(f"{out / 'site.toml'}: fill in where the images are, then:  harmofl deploy check {out}")


for name, command in membership.COMMANDS.items():
    deploy_app.command(name)(command)


@deploy_app.command("start")
def start(context: typer.Context, folder: Kit = HERE, plugins: PluginFiles = []) -> None:  # noqa: B006
    """Start this party, whichever it is, and stay until Ctrl-C or SIGTERM; one line per request.

    In a party's folder:  harmofl deploy start
    """
    from harmofl.deployment.party import start_party

    start_party(folder, debug=bool(context.find_root().params.get("debug")))


@deploy_app.command("check")
def check(
    folder: Kit = HERE,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """Check this party and say what to do about problems. Exit code 2 if there are any.

    In a party's folder:  harmofl deploy check
    """
    from harmofl.cli.tables import show_findings
    from harmofl.deployment.checking import check_kit

    if not show_findings(check_kit(folder), as_json):
        raise typer.Exit(2)


@deploy_app.command("audit")
def audit(folder: Kit = HERE) -> None:
    """Check the chain of a party's audit log, audit.jsonl: an entry that was changed or taken out breaks it.

    In a party's folder:  harmofl deploy audit
    """
    from harmofl.deployment.audit import audit_log, verify

    found = verify(audit_log(folder))
    print(f"{found.entries} entries from {found.first} to {found.last}, {found.refused} refused: the chain holds")
    print(f"Its head, to be noted elsewhere: {found.head}")


@deploy_app.command("approve")
def approve(
    digest: Annotated[str | None, typer.Argument(help="Which waiting run; without it, all are shown.")] = None,
    kit: Annotated[Path, typer.Option(help="The hospital's folder; the current one if not given.")] = HERE,
    config: Annotated[
        Path | None, typer.Option(help="Approve the run that this file describes, before the server asks for it.")
    ] = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    runs: Annotated[
        int | None, typer.Option(min=1, help="How often it may be started; as in site.toml if not given.")
    ] = None,
    refuse: Annotated[bool, typer.Option("--refuse", help="Refuse it, or withdraw an approval.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
) -> None:
    """At a hospital: show the runs that wait for approval in plain words, and approve one.

    In the hospital's folder:  harmofl deploy approve

    One of them:  harmofl deploy approve 3f2a9c

    A run that was agreed on:  harmofl deploy approve --config run.toml
    """
    from harmofl.deployment import approving
    from harmofl.deployment.approvals import Approvals
    from harmofl.deployment.kits import SiteKit
    from harmofl.settings import parse_assignments

    site = SiteKit.open(kit)
    agreed = approving.settings_of_file(config, preset, parse_assignments(assignments)) if config else None
    if refuse:
        print("\n".join(approving.refuse(site, digest, agreed)))
        return
    if agreed:
        chosen = [agreed]
    else:
        chosen = [approving.find_settings(site, each) for each in ([digest] if digest else Approvals(site).waiting())]
    for settings in chosen:
        print("\n".join(approving.describe_request(site, settings)))
        if digest or config:
            print(f"{approving.approve(site, settings, runs)}: approved")
    if not chosen:
        print(approving.NOTHING)
    elif not (digest or config):
        print("Approve one of them:  harmofl deploy approve DIGEST")


@deploy_app.command("run")
def run(
    out: Annotated[Path, typer.Option("--out", help="The run's folder; it must not hold a run yet.")],
    config: Annotated[Path | None, typer.Option(help="What to train: a TOML file, such as the kit's run.toml.")] = None,
    kit: Annotated[Path, typer.Option(help="The server's folder; the current one if not given.")] = HERE,
    task: Task = None,
    method: Method = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    seed: Seed = None,
    device: Annotated[str | None, typer.Option(help="The server's own; sites choose theirs.")] = None,
    resume: Resume = False,
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for all sites, and then for a quorum.")] = 60.0,
    log: Log = [],  # noqa: B006
    log_to: LogTo = None,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """At the server: train one model with the sites. Display, folder and report are those of `harmofl train`.

    In the server's folder:  harmofl deploy run --config run.toml --out runs/first

    A run that was stopped:  harmofl deploy run --out runs/first --resume
    """
    from harmofl.cli.interrupts import how_to_resume, interruptible
    from harmofl.cli.tables import show_summary
    from harmofl.deployment.coordinator import coordinate, read_options
    from harmofl.deployment.kits import ServerKit
    from harmofl.displays import open_display
    from harmofl.settings import parse_assignments

    own = {"seed": seed, "device": device}
    given = parse_assignments(assignments) | {name: value for name, value in own.items() if value is not None}
    server = ServerKit.open(kit)
    options = read_options(task, method, preset, config, given, resumed=out if resume else None)
    again = ["deploy", "run", "--kit", str(kit)]
    with (
        interruptible(lambda: how_to_resume(out, again)),
        open_display(quiet) as watch,
        open_loggers(log, out, log_to) as loggers,
    ):
        summary = coordinate(server, options, out, resume, wait, loggers.beside(watch))
        loggers.keep_files(out)
    show_summary(summary, out)
    print(f"Each site that took part also has the model, in its folder models/. A report: harmofl report {out}")


@deploy_app.command("compare")
def compare(
    config: Annotated[Path | None, typer.Option(help="What will be trained: a TOML file.")] = None,
    out: Annotated[
        Path | None, typer.Option("--out", help="The folder for a page with figures, and its numbers.")
    ] = None,
    kit: Annotated[Path, typer.Option(help="The server's folder; the current one if not given.")] = HERE,
    task: Task = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for all sites, and then for a quorum.")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON for machines.")] = False,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Compare the sites before training, from averages that each reports if its rules allow it, and give advice.

    In the server's folder:  harmofl deploy compare --task prostate --out comparison
    """
    from harmofl.cli.comparison_tables import show_comparison
    from harmofl.deployment.coordinator import read_options
    from harmofl.deployment.kits import ServerKit
    from harmofl.deployment.surveys import ask_for_surveys
    from harmofl.displays import open_display
    from harmofl.reporting.comparison_page import Compared, comparison_of, write_comparison
    from harmofl.settings import parse_assignments

    options = read_options(task, "fedavg", preset, config, parse_assignments(assignments))
    with open_display(quiet or as_json) as watch:
        settings, surveys = ask_for_surveys(ServerKit.open(kit), options, wait, watch)
    compared = Compared(comparison_of(settings, surveys), settings, images_here=False)
    if out is not None:
        write_comparison(out, compared)
    show_comparison(compared.comparison, as_json, out)


deploy_app.command("watch")(reading.watch)
deploy_app.command("follow")(reading.follow)
deploy_app.command("app")(existing.app)
deploy_app.command("job")(existing.job)


@deploy_app.command("plan")
def plan(
    out: Annotated[Path, typer.Option("--out", help="The folder for plan.md and plan.toml.")],
    config: Annotated[Path | None, typer.Option(help="What will be trained: a TOML file.")] = None,
    kit: Annotated[Path, typer.Option(help="The server's folder; the current one if not given.")] = HERE,
    task: Task = None,
    preset: Preset = None,
    assignments: Assignments = [],  # noqa: B006
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait for all sites, and then for a quorum.")] = 60.0,
    plugins: PluginFiles = [],  # noqa: B006
    quiet: Quiet = False,
) -> None:
    """Plan a training that suits all sites' images, from averages that each reports if its rules allow it.

    In the server's folder:  harmofl deploy plan --task prostate --set data.dimensions=3 --out plan

    Then:  harmofl deploy run --config plan/plan.toml --out runs/planned
    """
    from harmofl.deployment.coordinator import read_options
    from harmofl.deployment.kits import ServerKit
    from harmofl.deployment.surveys import ask_for_surveys
    from harmofl.displays import open_display
    from harmofl.reporting.plan_files import SETTINGS, WORDS, own_choices, plan_surveys, without_method, write_plan
    from harmofl.settings import parse_assignments

    given = parse_assignments(assignments)
    options = read_options(task, "fedavg", preset, config, without_method(given))
    with open_display(quiet) as watch:
        settings, surveys = ask_for_surveys(ServerKit.open(kit), options, wait, watch, as_scanned=True)
    choices = own_choices(given, config)
    write_plan(out, plan_surveys(settings, surveys, choices), images_here=False)
    print((out / WORDS).read_text(encoding="utf-8"))
    print(f"Written: {out / WORDS}, {out / SETTINGS}")
