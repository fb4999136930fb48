"""What the rest of the package asks of an engine: its defaults, what it needs installed, waiting for sites."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harmofl import registry
from harmofl.deployment.engine import Engine, deferred, find_engine, wait_for_sites
from harmofl.deployment.kits import Federation, ServerKit, SiteKit
from harmofl.errors import RunError, UsageError
from harmofl.federation.transports import Transport

FEDERATION = Federation(engine="plain", server="anywhere", sites=["A"])


def provision(federation: Federation, folder: Path) -> None:
    raise NotImplementedError


def run(kit: ServerKit | SiteKit) -> None:
    raise NotImplementedError


@contextmanager
def connect(kit: ServerKit) -> Iterator[Transport]:
    raise NotImplementedError
    yield


def plain(package: str = "", extra: str = "") -> Engine:
    return Engine("plain", "Plain", provision, serve=run, join=run, connect=connect, package=package, extra=extra)


def test_an_engine_of_four_functions_needs_nothing_else(tmp_path: Path) -> None:
    engine, kit = plain(), ServerKit(tmp_path, FEDERATION)
    assert (engine.read_address("anywhere"), engine.port(FEDERATION)) == ("anywhere", None)
    assert (list(engine.check_server(kit)), engine.server_files(["A"]), engine.expiring(["A"])) == ([], (), ())
    assert not engine.is_running(kit)
    with kit.lock():
        assert engine.is_running(kit)


@pytest.mark.parametrize(
    ("package", "extra", "words"),
    [
        ("", "", "'harmofl==0.2'"),
        ("flwr", "flower", "'harmofl[flower]==0.2'"),
        ("my-engine", "", "'harmofl==0.2' 'my-engine==1.0'"),
    ],
)
def test_kits_say_what_to_install(package: str, extra: str, words: str) -> None:
    assert plain(package, extra).requirements("0.2", "1.0") == words


@pytest.mark.parametrize(
    ("extra", "words"), [("", "pip install no-such-package"), ("plain", r"pip install 'harmofl\[plain\]'")]
)
@pytest.mark.usefixtures("own_registries")
def test_an_engine_whose_package_is_missing_says_what_to_install(extra: str, words: str) -> None:
    registry.engines.register(plain("no-such-package", extra))
    with pytest.raises(UsageError, match=words):
        find_engine("plain")


def test_a_deferred_function_is_imported_when_it_is_called() -> None:
    missing = deferred("no_such_module:function")
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        missing()
    assert deferred("math:sqrt")(9) == 3


def test_sites_are_waited_for_and_the_missing_ones_named() -> None:
    answers = iter([[], ["A"], ["A", "B"]])
    assert wait_for_sites(["C", "B", "A"], lambda: next(answers), 2, timeout=10) == ["A", "B", "C"]
    with pytest.raises(RunError, match="1 of 3 sites are connected; missing: B, C"):
        wait_for_sites(["C", "B", "A"], lambda: ["A"], 2, timeout=0)
