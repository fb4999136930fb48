"""A job for a project that others provisioned: what is written, and what its two classes do."""

import json
import threading
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare", reason="harmofl[nvflare] is not installed")

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.private.fed.server.job_meta_validator import JobMetaValidator

from harmofl.deployment.checking import check_kit
from harmofl.deployment.coordinator import NO_RUN, RunOptions, read_options
from harmofl.deployment.existing import write_app
from harmofl.deployment.guests import make_guest
from harmofl.deployment.nvflare.executor import SiteExecutor
from harmofl.deployment.nvflare.names import EXECUTOR, SITE_VARIABLE, TASK
from harmofl.deployment.nvflare.tasks import TaskTransport
from harmofl.errors import RunError, UsageError
from harmofl.federation.messages import Reply, Request, decode_reply, encode, settings_to_send

SITES = ["hospital-0", "hospital-1", "hospital-2"]
OPTIONS = RunOptions("histology", "harmofl", "smoke", given={"training.rounds": 3, "federation.quorum": 0.6})


def write(folder: Path, name: str = "first") -> Path:
    write_app("nvflare", OPTIONS, SITES, "", name, folder)
    return folder


def test_flare_accepts_the_job_and_finds_no_code_in_it(tmp_path: Path) -> None:
    job = write(tmp_path / "job")
    with zipfile.ZipFile(tmp_path / "job.zip", "w") as packed:
        for path in job.rglob("*"):
            packed.write(path, Path("job") / path.relative_to(job))
    valid, reason, meta = JobMetaValidator().validate("job", (tmp_path / "job.zip").read_bytes())
    assert valid, reason
    assert not meta.get("byoc")
    assert meta["min_clients"] == 2  # 0.6 of three sites, rounded up
    assert meta["deploy_map"] == {"app": ["server", *SITES]}


def test_a_job_says_what_the_command_said(tmp_path: Path) -> None:
    written = read_options(None, None, None, write(tmp_path / "job") / "app" / "config" / "run.toml", {})
    for synthetic in (False, True):
        assert written.resolve(synthetic)[0] == OPTIONS.resolve(synthetic)[0]


def test_a_wrong_name_writes_nothing(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--name"):
        write(tmp_path / "job", "../evil")
    assert list(tmp_path.iterdir()) == []


def context(name: str, local: Path) -> Any:
    workspace = SimpleNamespace(get_site_config_dir=lambda: str(local))
    engine = SimpleNamespace(get_workspace=lambda: workspace)
    return SimpleNamespace(get_engine=lambda: engine, get_identity_name=lambda: name)


def ask(executor: SiteExecutor, name: str, local: Path) -> Reply:
    settings = settings_to_send(OPTIONS.resolve(synthetic=True)[0])
    task = Shareable({TASK: encode(Request(NO_RUN, "describe", 0, settings=settings))})
    answer = executor.execute(TASK, task, context(name, local), Signal())
    assert answer.get_return_code() == ReturnCode.OK
    return decode_reply(answer[TASK])


def test_a_site_answers_by_its_own_settings(tmp_path: Path) -> None:
    make_guest(tmp_path / "harmofl", SITES[0], ["histology"], synthetic=True)
    executor = SiteExecutor()
    assert ask(executor, SITES[0], tmp_path).description == {"synthetic": True}
    executor.handle_event(EventType.END_RUN, context(SITES[0], tmp_path))
    text = (tmp_path / "harmofl" / "site.toml").read_text()
    (tmp_path / "harmofl" / "site.toml").write_text(text.replace('tasks = ["histology"]', 'tasks = ["nuclei"]'))
    assert "task 'histology' is not accepted here" in ask(executor, SITES[0], tmp_path).error
    assert len((tmp_path / "harmofl" / "audit.jsonl").read_text().splitlines()) == 2


def test_its_folder_may_be_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_guest(tmp_path / "elsewhere", SITES[0], ["histology"], synthetic=True)
    monkeypatch.setenv(SITE_VARIABLE, str(tmp_path / "elsewhere"))
    assert ask(SiteExecutor(), SITES[0], tmp_path / "local").description == {"synthetic": True}


def test_a_site_that_is_not_set_up_says_so_and_no_more(tmp_path: Path) -> None:
    reply = ask(SiteExecutor(), SITES[0], tmp_path)
    assert "not set up" in reply.error
    assert str(tmp_path) not in reply.error


def test_a_site_that_flare_knows_by_another_name_does_not_answer(tmp_path: Path) -> None:
    make_guest(tmp_path / "harmofl", SITES[0], ["histology"], synthetic=True)
    assert "not set up" in ask(SiteExecutor(), SITES[1], tmp_path).error


def test_two_jobs_do_not_share_a_site(tmp_path: Path) -> None:
    make_guest(tmp_path / "harmofl", SITES[0], ["histology"], synthetic=True)
    first, second = SiteExecutor(), SiteExecutor()
    assert not ask(first, SITES[0], tmp_path).error
    assert "not set up" in ask(second, SITES[0], tmp_path).error
    first.handle_event(EventType.END_RUN, context(SITES[0], tmp_path))
    assert not ask(second, SITES[0], tmp_path).error


@pytest.mark.parametrize(("task", "data"), [("train", b"bytes"), (TASK, "text"), (TASK, None)])
def test_other_tasks_are_unknown(tmp_path: Path, task: str, data: object) -> None:
    answer = SiteExecutor().execute(task, Shareable({TASK: data}), context(SITES[0], tmp_path), Signal())
    assert answer.get_return_code() == ReturnCode.TASK_UNKNOWN


class Sites:
    """A controller whose sites do what `behave` says, each in a thread, as FLARE's own controller calls back."""

    def __init__(self, behave: Callable[[str, bytes], Shareable | None], away: tuple[str, ...] = ()) -> None:
        self._behave = behave
        self._away = away
        self.cancelled: list[Task] = []
        self.tasks: list[Task] = []

    def broadcast(self, task: Task, fl_ctx: object, targets: list[str], min_responses: int) -> None:
        assert min_responses == len(targets)
        self.tasks.append(task)
        threading.Thread(target=self._run, args=(task, targets), daemon=True).start()

    def _run(self, task: Task, targets: list[str]) -> None:
        for site in targets:
            given = ClientTask(SimpleNamespace(name=site), task)
            given.result = self._behave(site, task.data[TASK])
            if given.result is not None:
                task.result_received_cb(client_task=given, fl_ctx=None)
                assert given.result is None  # its memory is free again
        if not self._away:
            return
        task.completion_status = "client_dead"
        task.task_done_cb(task=task, fl_ctx=None)

    def cancel_task(self, task: Task) -> None:
        self.cancelled.append(task)

    def get_client_disconnect_time(self, site: str) -> float | None:
        return 1.0 if site in self._away else None


def transport(controller: Sites, signal: Signal | None = None) -> TaskTransport:
    clients = [SimpleNamespace(name=site) for site in reversed(SITES)]
    fl_ctx = SimpleNamespace(get_engine=lambda: SimpleNamespace(get_clients=lambda: clients))
    return TaskTransport(controller, fl_ctx, signal or Signal())


def replies(controller: Sites, timeout: float = 20.0, signal: Signal | None = None) -> dict[str, Reply]:
    requests = dict.fromkeys(SITES, Request("0" * 32, "train", 1))
    return {reply.site: reply for reply in transport(controller, signal).ask(requests, timeout)}


def answer(site: str, data: bytes) -> Shareable:
    reply = make_reply(ReturnCode.OK)
    reply[TASK] = encode(Reply(site, num_examples=3))
    return reply


def test_equal_requests_are_one_task_and_every_site_answers_once() -> None:
    controller = Sites(answer)
    assert {site: reply.num_examples for site, reply in replies(controller).items()} == dict.fromkeys(SITES, 3)
    assert len(controller.tasks) == 1


def test_a_site_is_left_out_for_what_it_sends_or_does_not_send() -> None:
    def behave(site: str, data: bytes) -> Shareable | None:
        return {
            SITES[0]: make_reply(ReturnCode.EXECUTION_EXCEPTION),
            SITES[1]: answer(SITES[0], data),  # in another's name
        }.get(site)

    found = replies(Sites(behave, away=(SITES[2],)))
    assert "EXECUTION_EXCEPTION" in found[SITES[0]].error
    assert "answered in the name of 'hospital-0'" in found[SITES[1]].error
    assert found[SITES[2]].error == "not connected"


def test_a_site_that_takes_too_long_is_left_out_and_its_task_is_taken_back() -> None:
    controller = Sites(lambda site, data: None if site == SITES[1] else answer(site, data))
    found = replies(controller, timeout=0.3)
    assert [site for site, reply in found.items() if reply.error] == [SITES[1]]
    assert controller.cancelled == controller.tasks


def test_an_answer_larger_than_expected_is_refused() -> None:
    reached = transport(Sites(answer))
    reached.limit_replies(10)
    found = list(reached.ask({SITES[0]: Request("0" * 32, "train", 1)}, 20))
    assert "at most 10 are accepted" in found[0].error


def test_an_aborted_job_ends_the_run_at_once() -> None:
    signal, controller = Signal(), Sites(lambda site, data: None)
    threading.Timer(0.2, signal.trigger, args=[True]).start()
    started = time.monotonic()
    with pytest.raises(RunError, match="submit the job again"):
        replies(controller, timeout=60, signal=signal)
    assert time.monotonic() - started < 10
    assert controller.cancelled == controller.tasks


def test_a_site_that_is_away_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harmofl.deployment.nvflare.tasks.PATIENCE", 0.1)
    reached = transport(Sites(answer, away=(SITES[1],)))
    assert reached.sites(2, 1000) == SITES
    with pytest.raises(RunError, match="missing: hospital-1"):
        reached.sites(3, 1000)


@pytest.mark.parametrize(
    ("entries", "streams", "ok", "told"),
    [
        ([EXECUTOR], False, True, "stays here"),
        (["harmofl."], True, True, "is sent to the server"),
        (["nvflare."], False, False, "does not name harmofl's executor"),
    ],
)
def test_a_check_says_whether_the_client_lets_a_job_run(
    tmp_path: Path, entries: list[str], streams: bool, ok: bool, told: str
) -> None:
    make_guest(tmp_path / "local" / "harmofl", SITES[0], ["histology"], synthetic=True)
    (tmp_path / "startup").mkdir()
    (tmp_path / "startup" / "fed_client.json").write_text("{}")
    resources = {"class_allow_list": entries, "allow_log_streaming": streams}
    (tmp_path / "local" / "resources.json").write_text(json.dumps(resources))
    findings = list(check_kit(tmp_path / "local" / "harmofl"))
    assert any(told in finding.what for finding in findings)
    assert all(finding.ok for finding in findings) == ok
