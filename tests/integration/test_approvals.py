"""People in the loop on Apache Kafka: a worker, agents in processes of their own, and the answers that people type."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests._support.hosts import Host, RemoteRun, StartRefusedError
from tests._support.kafka import ApacheKafka
from tests._support.operators import told
from tests._support.workers import Deployment, wait_until

TENANT = "acme"
WHY = ("--why", "invoice checked", "--who", "kim")
PAY = {"to": "lee", "sum": 300}
# Waiting runs of `brief` are ended while a test looks on.
POLICY = """
mode: enforce
tenants:
  brief: {ladder: {pause_timeout_ms: 2000}}
"""

_numbers = itertools.count(1)


class Pager:
    """An address that events are posted to. `heard` has what came, in order."""

    def __init__(self) -> None:
        self.heard: list[dict[str, Any]] = []
        heard = self.heard

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/questions"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def of_run(self, run_id: str) -> list[str]:
        """Return what happened to the questions of a run, each event once."""
        events = {one["event_id"]: one["event"] for one in self.heard if one["question"]["run_id"] == run_id}
        return list(events.values())

    def close(self) -> None:
        """Stop listening."""
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture(scope="module")
def pager() -> Iterator[Pager]:
    """Return the address that the worker tells of questions."""
    made = Pager()
    yield made
    made.close()


@pytest.fixture(scope="module")
def deployment(
    apache_kafka: ApacheKafka, tmp_path_factory: pytest.TempPathFactory, pager: Pager
) -> Iterator[Deployment]:
    """One worker for all tests of the module; each has runs of its own."""
    directory = tmp_path_factory.mktemp("approvals")
    hooks = directory / "webhooks.yaml"
    hooks.write_text(f"acme: {{url: '{pager.url}', backoff_s: 0.1}}\n")
    with Deployment(apache_kafka.bootstrap, directory, policy=POLICY, webhooks=str(hooks)) as made:
        made.start().ready()
        yield made


@pytest.fixture
def hosts(deployment: Deployment, tmp_path: Path) -> Iterator[Callable[[], Host]]:
    """Makes runtimes in processes of their own."""
    made: list[Host] = []

    def start() -> Host:
        name = f"rt-{next(_numbers)}"
        made.append(Host(deployment.bootstrap, deployment.prefix, name, tmp_path / f"{name}.log"))
        return made[-1].guard(asks_for_s=600.0)

    yield start
    for host in made:
        host.kill()


@pytest.fixture
def host(hosts: Callable[[], Host]) -> Host:
    """Return a runtime that asks for every call of `pay`."""
    return hosts()


@pytest.fixture
def run_id(request: pytest.FixtureRequest) -> str:
    """Return the id of a run that no other test has."""
    return f"r-{request.node.name.removeprefix('test_')[:40]}"


def questions(deployment: Deployment, run_id: str, state: str = "all", tenant: str = TENANT) -> list[dict[str, Any]]:
    """Return what `loopwarden approvals list` says of a run."""
    rows = told(deployment, "approvals", "list", "--tenant", tenant, "--state", state)
    return [row for row in rows if row["run_id"] == run_id]


def question(deployment: Deployment, run_id: str, status: str = "open", **where: Any) -> dict[str, Any]:
    """Wait for a question of a run that stands so, and return it."""

    def look() -> dict[str, Any] | None:
        return next((row for row in questions(deployment, run_id, **where) if row["status"] == status), None)

    found = wait_until(look, f"a question of {run_id} to be {status}", context=deployment.logs)
    assert found is not None
    return found


def pay(run: RemoteRun, args: object = PAY, call_id: str = "c1") -> str:
    """Ask for a call of `pay`, and return the action that was answered."""
    return str(run.tell("before_tool", "pay", args, call_id)["action"])


def answered(
    deployment: Deployment, word: str, asked: dict[str, Any], *more: str, status: int = 0
) -> list[dict[str, Any]]:
    """Answer a question as a person does, check the exit status, and return what was printed."""
    return told(deployment, "approvals", word, asked["tenant"], asked["question_id"], *WHY, *more, status=status)


def taken_up(run: RemoteRun, action: str, args: object = PAY, call_id: str = "c1") -> None:
    """Wait until a call that waits is answered so."""
    wait_until(lambda: pay(run, args, call_id) == action, f"the call to be answered {action}")


def outcomes(deployment: Deployment, run_id: str) -> list[tuple[str, str]]:
    """Return tool and outcome of the run's ended calls."""
    steps = [step for step in deployment.messages("steps") if step["run_id"] == run_id]
    return [(step["tool"], step["outcome"]) for step in steps if step["type"] == "tool_end"]


def test_a_call_is_approved_and_made_once(deployment: Deployment, host: Host, run_id: str) -> None:
    """From the wait to the call: listed, shown with its arguments, answered, audited, and closed."""
    run = host.run(run_id, agent="clerk")
    assert pay(run) == "pause"
    asked = question(deployment, run_id)
    assert (asked["kind"], asked["tool"], asked["agent"], asked["incarnation"]) == (
        "action",
        "pay",
        "clerk",
        run.key.incarnation,
    )
    (shown,) = told(deployment, "approvals", "show", TENANT, asked["question_id"][:12])
    assert shown["args"] == PAY
    raw = [record for record in deployment.read("control.state") if b"|question|" in (record.key or b"")]
    assert raw
    assert all(b"lee" not in (record.value or b"") for record in raw)

    answered(deployment, "approve", asked, "--wait", "0")
    taken_up(run, "allow")
    run.end("c1", result="done")
    closed = question(deployment, run_id, "approved")
    assert closed["answer"]["reason"]["note"] == "invoice checked (kim)"
    # The same call once more is another question.
    assert pay(run, call_id="c2") == "pause"
    again = question(deployment, run_id)
    assert again["question_id"] != asked["question_id"]

    (late,) = answered(deployment, "reject", asked, status=1)
    assert late["outcome"] == "approved"
    actions = [one for one in deployment.messages("verdicts") if one.get("action") == "answer_question"]
    (own,) = [one for one in actions if one["run_id"] == run_id]
    assert (own["state"], own["who"], own["why"], own["tool"]) == ("approved", "kim", "invoice checked", "pay")


def test_the_answer_is_confirmed_when_the_run_has_taken_it_up(deployment: Deployment, host: Host, run_id: str) -> None:
    """A script that approves knows from the exit status whether the call was let through."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    asked = question(deployment, run_id)

    (*_, outcome) = answered(deployment, "approve", asked, "--wait", "1s", status=1)
    assert outcome["outcome"] == "open"
    assert question(deployment, run_id, "answered")["answer"]["decision"] == "approved"
    taken_up(run, "allow")
    assert question(deployment, run_id, "approved")


def test_people_elsewhere_are_told(deployment: Deployment, host: Host, run_id: str, pager: Pager) -> None:
    """Asked, answered, taken up: each is posted by the worker, with the run and the tool and no argument."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    wait_until(lambda: pager.of_run(run_id) == ["open"], "the question to be told of", context=deployment.logs)
    assert deployment.workers[-1].metric("loopwarden_questions_open", tenant=TENANT) >= 1
    answered(deployment, "approve", question(deployment, run_id), "--wait", "0")
    wait_until(lambda: pager.of_run(run_id) == ["open", "answered"], "the answer to be told of")
    taken_up(run, "allow")
    wait_until(lambda: pager.of_run(run_id) == ["open", "answered", "approved"], "the end to be told of")

    assert "lee" not in json.dumps(pager.heard)
    assert deployment.workers[-1].metric("loopwarden_webhooks_sent_total") >= 3


def test_changed_arguments_are_another_question(deployment: Deployment, host: Host, run_id: str) -> None:
    """An approval of 300 lets no 3,000 through."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    asked = question(deployment, run_id)
    dearer = {**PAY, "sum": 3_000}
    assert pay(run, dearer) == "pause"
    assert question(deployment, run_id, "expired")["question_id"] == asked["question_id"]
    answered(deployment, "approve", asked, status=1)

    assert pay(run, dearer) == "pause"
    answered(deployment, "approve", question(deployment, run_id), "--wait", "0")
    taken_up(run, "allow", dearer)


def test_a_rejection_leads_elsewhere_and_insisting_is_seen(deployment: Deployment, host: Host, run_id: str) -> None:
    """The call is refused for good, without another question, and the rule about refusals counts each try."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    answered(deployment, "reject", question(deployment, run_id), "--wait", "0")
    taken_up(run, "block")
    for n in range(12):
        assert pay(run, call_id=f"again-{n}") == "block"

    wait_until(lambda: outcomes(deployment, run_id) == [("pay", "denied")] * 13, "the refusals to be reported")
    assert len(questions(deployment, run_id)) == 1
    said = wait_until(
        lambda: [
            one
            for one in deployment.messages("verdicts")
            if (one.get("run_id"), one.get("detector")) == (run_id, "denied")
        ],
        "the rule about refusals",
        context=deployment.logs,
    )
    assert said


def test_killed_while_a_person_is_asked(deployment: Deployment, host: Host, run_id: str) -> None:
    """Lifecycle 32: the call is not made, and whoever approves it later is told that the run has ended."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    asked = question(deployment, run_id)
    told(deployment, "run", "kill", TENANT, run_id, *WHY, "--wait", "0")
    wait_until(lambda: run.is_stopped, "the kill")

    answered(deployment, "approve", asked, "--wait", "0")
    assert pay(run) == "stop"
    run.leave()
    question(deployment, run_id, "expired")
    (late,) = answered(deployment, "approve", asked, status=1)
    assert late["outcome"] == "expired"
    ends = [
        step for step in deployment.messages("steps") if step["run_id"] == run_id and step["type"] == "approval_end"
    ]
    assert [end["decision"] for end in ends] == ["expired"]


def test_a_runtime_that_died_is_followed_by_one_that_finds_the_answer(
    deployment: Deployment, hosts: Callable[[], Host], run_id: str
) -> None:
    """Asked by one process, answered while nobody runs, and taken up once by another."""
    first = hosts()
    assert pay(first.run(run_id)) == "pause"
    asked = question(deployment, run_id)
    first.kill()
    answered(deployment, "approve", asked, "--wait", "0")

    run = hosts().run(run_id)
    assert pay(run, call_id="another-id") == "allow"
    run.end("another-id", result="done")
    assert question(deployment, run_id, "approved")["question_id"] == asked["question_id"]
    # A third process must not find an approval that was used.
    third = hosts().run(run_id)
    assert pay(third) == "pause"


def test_a_worker_that_died_leaves_the_question(deployment: Deployment, host: Host, run_id: str) -> None:
    """Questions and answers are records: who detects in the meantime does not matter."""
    run = host.run(run_id)
    assert pay(run) == "pause"
    asked = question(deployment, run_id)
    deployment.workers[-1].kill()
    answered(deployment, "approve", asked, "--wait", "0")
    taken_up(run, "allow")

    deployment.start().ready()
    assert question(deployment, run_id, "approved")


def test_nobody_answers(deployment: Deployment, hosts: Callable[[], Host], run_id: str) -> None:
    """When its time is over the call is refused, and the question has expired."""
    host = hosts().guard("hasty", asks_for_s=1.0)
    run = host.run(run_id, tenant="hasty")
    assert pay(run) == "pause"

    taken_up(run, "block")
    assert question(deployment, run_id, "expired", tenant="hasty")


def looping(host: Host, run_id: str, tenant: str = TENANT) -> RemoteRun:
    """Return an attended run that loops until it is paused."""
    run = host.run(run_id, tenant=tenant, attended=True)
    run.repeat(lambda: run.tell("before_model")["action"] == "pause", what="the pause")
    return run


def test_a_paused_run_asks_and_goes_on(deployment: Deployment, host: Host, run_id: str) -> None:
    """Lifecycle 8: an attended run waits for a person, and a person's yes lets it go on."""
    run = looping(host, run_id)
    asked = question(deployment, run_id)
    assert (asked["kind"], asked["reason"]["tool"], asked["command_id"]) == ("pause", "search", asked["question_id"])

    (*_, outcome) = answered(deployment, "approve", asked)
    assert outcome["outcome"] == "confirmed"
    assert run.call("fetch", "elsewhere") == "allow"
    assert question(deployment, run_id, "approved")


def test_a_paused_run_is_ended_by_a_person(deployment: Deployment, host: Host, run_id: str) -> None:
    """No is a kill: its gate is shut, and it is not started again until it is released."""
    run = looping(host, run_id)
    asked = question(deployment, run_id)
    answered(deployment, "reject", asked, "--wait", "0")
    wait_until(lambda: run.is_stopped, "the kill")
    run.leave()

    assert question(deployment, run_id, "expired")


def test_a_run_that_is_left_while_it_is_paused_is_not_completed(
    deployment: Deployment, host: Host, run_id: str
) -> None:
    """Lifecycle 8: whatever the framework makes of the pause, the run waits for approval."""
    run = looping(host, run_id)
    asked = question(deployment, run_id)
    run.leave()
    host.flush()

    (end,) = [step for step in deployment.messages("steps") if step["run_id"] == run_id and step["type"] == "run_end"]
    assert end["status"] == "awaiting_approval"
    assert question(deployment, run_id)["question_id"] == asked["question_id"]


def test_paused_and_forgotten_then_released_without_a_new_budget(
    deployment: Deployment, hosts: Callable[[], Host], run_id: str
) -> None:
    """Lifecycle 81 and 23: the run ends by itself, is released, and what it had used stays used."""
    host = hosts()
    run = looping(host, run_id, tenant="brief")
    run.tell("after_model", usage={"input_tokens": 1_000, "output_tokens": 200})
    wait_until(lambda: run.is_stopped, "the end of the pause", context=deployment.logs)
    run.leave()
    question(deployment, run_id, "expired", tenant="brief")
    (end,) = [step for step in deployment.messages("steps") if step["run_id"] == run_id and step["type"] == "run_end"]
    assert end["status"] == "killed"
    silent = [
        one
        for one in deployment.messages("verdicts")
        if (one.get("run_id"), one.get("detector")) == (run_id, "silent_run")
    ]
    assert silent == []

    def used() -> dict[str, Any]:
        rows = told(deployment, "runs", "--tenant", "brief", "--state", "all")
        return next(row for row in rows if row["run_id"] == run_id)

    deployment.wait_applied()
    before = used()
    assert before["tokens"] >= 1_200
    told(deployment, "run", "resume", "brief", run_id, *WHY, "--wait", "0")
    other = hosts().guard("brief")
    again = wait_until(lambda: _started(other, run_id), "the release to be read")
    assert again is not None
    assert again.call("fetch", "page 1") == "allow"
    again.tell("after_model", usage={"input_tokens": 10, "output_tokens": 0})
    other.flush()
    deployment.wait_applied()
    after = used()
    assert (after["steps"], after["tokens"]) == (before["steps"] + 1, before["tokens"] + 10)


def _started(host: Host, run_id: str) -> RemoteRun | None:
    try:
        return host.run(run_id, tenant="brief")
    except StartRefusedError:
        return None
