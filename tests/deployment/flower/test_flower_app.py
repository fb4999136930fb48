"""The Flower app: its own two files, run by Flower's public classes over a grid in this process."""

import ast
import importlib.util
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("flwr", reason="harmofl[flower] is not installed")

from flwr.app import Context, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

import harmofl.deployment.flower.app
from harmofl.deployment.audit import audit_log, verify
from harmofl.deployment.coordinator import RunOptions
from harmofl.deployment.existing import write_app
from harmofl.deployment.flower.app.roster import Roster
from harmofl.deployment.flower.app.server import read_run_config
from harmofl.deployment.flower.app.site import NODE_CONFIG, VARIABLE, find_folder
from harmofl.deployment.flower.mailbox import NODE_UNAVAILABLE, Connection
from harmofl.deployment.guests import make_guest
from harmofl.errors import UsageError
from harmofl.settings import read_toml
from runs import SITES, differences, records, stop_after_round, tiny, train

TWO = SITES[:2]
PUBLIC = {"flwr.app", "flwr.serverapp", "flwr.clientapp"}


class LocalGrid(Grid):
    """Hands each message to the client app of its node, in this process."""

    def __init__(self, client: ModuleType, nodes: dict[int, dict[str, Any]]) -> None:
        self.client, self.nodes = client, nodes
        self.named: dict[int, str] = {}
        self.replies: dict[str, Message] = {}

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    def create_message(self, *arguments: Any, **more: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Any:
        return [
            SimpleNamespace(node_id=node, name=self.named.get(node, ""), last_activated_at="monday", public_key=b"")
            for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        sent = []
        for message in messages:
            sent.append(message.object_id)
            message.metadata.__dict__["_message_id"] = sent[-1]
            node = message.metadata.dst_node_id
            context = Context(1, node, self.nodes[node], RecordDict(), {})
            self.replies[sent[-1]] = self.client.app(message, context)
        return sent

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self.replies.pop(name) for name in message_ids if name in self.replies]


def load(path: Path) -> ModuleType:
    """A file of the app, as Flower loads it."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def in_a_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower's process knows which task it works on."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    monkeypatch.delenv(VARIABLE, raising=False)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    options = RunOptions("histology", "harmofl", "smoke", given=tiny("histology"))
    write_app("flower", options, TWO, str(tmp_path / "runs"), "harmofl-app", tmp_path / "app")
    return tmp_path / "app"


@pytest.fixture
def grid(app: Path, tmp_path: Path) -> LocalGrid:
    for site in TWO:
        make_guest(tmp_path / site, site, ["histology"], synthetic=True)
    nodes = {number: {NODE_CONFIG: str(tmp_path / site)} for number, site in enumerate(TWO, start=11)}
    return LocalGrid(load(app / "harmofl_app" / "client_app.py"), nodes)


def run_config(app: Path, **changes: Any) -> dict[str, Any]:
    return read_toml(app / "pyproject.toml")["tool"]["flwr"]["app"]["config"] | changes


def run(app: Path, grid: LocalGrid, **changes: Any) -> None:
    """What `flwr run` starts on the SuperLink's machine."""
    server = load(app / "harmofl_app" / "server_app.py")
    server.app(grid, Context(1, 1, {}, RecordDict(), run_config(app, **changes)))


def test_the_app_changes_no_bit(tmp_path: Path, app: Path, grid: LocalGrid) -> None:
    train(tmp_path / "here", "harmofl", data__sites=TWO)
    run(app, grid)
    assert differences(tmp_path / "here", tmp_path / "runs" / "first", stores=False) == []
    assert verify(audit_log(tmp_path / "runs")).entries == verify(audit_log(tmp_path / TWO[0])).entries * 2 + 1
    assert list((tmp_path / TWO[0] / "models").glob("*/model.safetensors"))


def test_a_run_that_was_stopped_goes_on(tmp_path: Path, app: Path, grid: LocalGrid) -> None:
    train(tmp_path / "here", "harmofl", data__sites=TWO)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("harmofl.deployment.flower.app.server.open_display", lambda: nullcontext(stop_after_round(1)))
        with pytest.raises(KeyboardInterrupt):
            run(app, grid)
    with pytest.raises(UsageError, match="resume"):
        run(app, grid)
    run(app, grid, resume=True)
    assert differences(tmp_path / "here", tmp_path / "runs" / "first", stores=False) == []


def test_settings_can_be_changed_for_one_run(tmp_path: Path, app: Path, grid: LocalGrid) -> None:
    run(app, grid, run="second", set="training.rounds=1 seed=3 method.name=fedavg")
    settings = read_toml(tmp_path / "runs" / "second" / "config.toml")
    assert (settings["training"]["rounds"], settings["seed"], settings["method"]["name"]) == (1, 3, "fedavg")


def test_each_hospital_decides_by_its_own_file(tmp_path: Path, app: Path, grid: LocalGrid) -> None:
    path = tmp_path / TWO[1] / "site.toml"
    path.write_text(path.read_text().replace('tasks = ["histology"]', 'tasks = ["nuclei"]'))
    run(app, grid, set="federation.quorum=0.5 training.rounds=1")
    trained = [record for record in records(tmp_path / "runs" / "first") if record["phase"] == "train"]
    refused = [record["site"] for record in trained if "'histology' is not accepted" in record.get("error", "")]
    assert refused == [TWO[1]]


def test_no_details_of_a_wrong_folder_leave_the_hospital(
    tmp_path: Path, app: Path, grid: LocalGrid, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / TWO[1] / "site.toml").write_text("secret = 1")
    reply = grid.client.app(message_to(12, "query.hello"), Context(1, 12, grid.nodes[12], RecordDict(), {}))
    assert reply.has_error()
    assert str(tmp_path) not in reply.error.reason
    assert "secret" not in reply.error.reason
    assert "site.toml" in capsys.readouterr().out


def message_to(node: int, kind: str) -> Message:
    message = Message(RecordDict(), node, kind, ttl=1)
    message.metadata.__dict__["_message_id"] = "asked"
    return message


def test_the_folder_is_named_by_the_node_or_by_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/by/variable")
    assert find_folder({NODE_CONFIG: "/by/node"}) == Path("/by/node")
    assert find_folder({}) == Path("/by/variable")
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(UsageError, match="harmofl-site"):
        find_folder({})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": "here"}, "whole path"),
        ({"run": "../elsewhere"}, "'../elsewhere'"),
        ({"resume": "yes"}, "resume = 'yes'"),
        ({"set": "nothing"}, "section.name=value"),
        ({"sites": "A,,B"}, "site ''"),
    ],
)
def test_a_wrong_configuration_is_named(app: Path, grid: LocalGrid, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(app, grid, **changes)


def test_every_value_has_a_default(app: Path) -> None:
    assert read_run_config(run_config(app)) == run_config(app)


class Nodes:
    """A mailbox whose nodes say names."""

    def __init__(self, **names: str) -> None:
        self.here = {Connection(number, "monday"): "" for number in range(len(names))}
        self.said: list[bytes | str | None] = [name.encode() for name in names.values()]

    def nodes(self) -> dict[Connection, str]:
        return dict(self.here)

    def post(self, nodes: Iterable[int], data: bytes, seconds: float, kind: str = "") -> list[str]:
        assert kind == "query.hello"
        return [str(node) for node in nodes]

    def fetch(self, identifier: str) -> bytes | str | None:
        return self.said[int(identifier)]


def connected(nodes: Nodes, times: int = 2) -> dict[str, int]:
    roster = Roster(nodes, ["A", "B"])  # type: ignore[arg-type]
    for _ in range(times):
        found = roster.connections()
    return {name: connection.node for name, connection in found.items()}


def test_nobody_is_waited_for() -> None:
    nodes = Nodes(first="A", second="B")
    assert connected(nodes, times=1) == {}
    nodes.said[1] = None
    assert connected(nodes) == {"A": 0}


def test_a_name_is_one_nodes() -> None:
    assert len(connected(Nodes(first="A", second="A"))) == 1
    assert connected(Nodes(first="A", second="C")) == {"A": 0}


def test_a_name_that_the_superlink_gave_to_a_node_is_no_others() -> None:
    nodes = Nodes(first="A", second="A")
    nodes.here[Connection(1, "monday")] = "A"
    assert connected(nodes) == {"A": 1}


def test_a_restarted_node_is_asked_again() -> None:
    nodes = Nodes(first="A")
    roster = Roster(nodes, ["A", "B"])  # type: ignore[arg-type]
    roster.connections()
    assert list(roster.connections()) == ["A"]
    nodes.here, nodes.said = {Connection(0, "tuesday"): ""}, [b"B"]
    assert roster.connections() == {}
    assert roster.connections() == {"B": Connection(0, "tuesday")}


def test_a_node_that_cannot_say_its_name_takes_no_part() -> None:
    nodes = Nodes(first="A", second="B")
    nodes.said[0] = "Flower's error 1: no harmofl here"
    assert connected(nodes) == {"B": 1}


def test_the_app_uses_only_what_flower_publishes() -> None:
    """And so does everything of ours that it imports, but for packages that are not Flower's."""
    used = {name for name in sys.modules if name.startswith("harmofl.deployment.flower")}
    assert not {name for name in imported_by("harmofl.deployment.flower.app.server") if ".runtime" in name}
    assert "harmofl.deployment.flower.app.server" in used
    folder = Path(harmofl.deployment.flower.app.__file__).parent
    files = [*folder.glob("*.py"), *folder.glob("*.py.j2")]
    files += [folder.parent / f"{name}.py" for name in ("mailbox", "messages", "exchange")]
    assert len(files) > 8
    for path in files:
        tree = ast.parse(path.read_text())
        names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        assert {name for name in names if name.startswith("flwr")} <= PUBLIC, path


def imported_by(module: str) -> set[str]:
    """The modules of ours that a module imports, and those that they import in turn."""
    found, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        spec = importlib.util.find_spec(name)
        if name in found or spec is None or spec.origin is None or not name.startswith("harmofl.deployment.flower"):
            continue
        found.add(name)
        tree = ast.parse(Path(spec.origin).read_text())
        waiting += [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    return found


def test_flowers_numbers_are_those_that_it_uses() -> None:
    from flwr.common.constant import ErrorCode

    from harmofl.deployment.flower.app.site import APP_FAILED

    assert (NODE_UNAVAILABLE, APP_FAILED) == (ErrorCode.NODE_UNAVAILABLE, ErrorCode.CLIENT_APP_RAISED_EXCEPTION)


def test_flower_takes_the_app(app: Path) -> None:
    from flwr.cli.config_utils import load_and_validate

    config, warnings = load_and_validate(app / "pyproject.toml")
    assert not warnings
    assert config["tool"]["flwr"]["app"]["components"]["clientapp"] == "harmofl_app.client_app:app"
