"""Whatever agents, people, time and restarts do: no call is made that a person has not approved, and none twice."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from loopwarden import Action, Approvals, RunGuard
from loopwarden.testing import START_MS, GuardBench, MemoryTransport, answer
from loopwarden_models.events import ApprovalEnd, ApprovalWait
from loopwarden_models.questions import QuestionRecord, question_key

RUN = "r-42"
TIMEOUT_MS = 60_000
# Few, and the first more often than others: what matters takes several steps about one call.
SUMS = st.sampled_from([1, 1, 1, 2])
CALLS = st.sampled_from(["c1", "c1", "c1", "c2"])
DECISIONS = st.sampled_from(["approved", "approved", "approved", "rejected", "instructed", "later"])


class People(RuleBasedStateMachine):
    """One run that pays, over several processes; the detector's part is played from what the run reports."""

    def __init__(self) -> None:
        super().__init__()
        self.transport = MemoryTransport()
        self.bench = self._process()
        self.run: RunGuard = self.bench.guard.run(RUN).__enter__()
        self.version = 0
        self.read = 0
        self.asked: dict[str, ApprovalWait] = {}
        self.closed: set[str] = set()
        self.approved: set[str] = set()
        self.refused: set[str] = set()
        self.used: list[str] = []

    def _process(self) -> GuardBench:
        approvals = Approvals(tools=["pay"], timeout_s=TIMEOUT_MS / 1000)
        return GuardBench(transport=self.transport, approvals=approvals)

    def _detect(self) -> None:
        """Publish what is asked and how it ended, as the detector does."""
        self.bench.pump()
        steps = self.transport.steps
        for step in steps[self.read :]:
            if isinstance(step, ApprovalWait) and step.question_id is not None:
                self.asked[step.question_id] = step
            elif isinstance(step, ApprovalEnd) and step.question_id is not None:
                self.closed.add(step.question_id)
                self.transport.state(
                    QuestionRecord(
                        v=1,
                        key=question_key("acme", step.question_id),
                        version=[42, len(steps)],
                        kind="action",
                        state=step.decision or "",
                        run_id=RUN,
                        root_run_id=RUN,
                        incarnation="a",
                    )
                )
        self.read = len(steps)
        self.bench.pump()

    @rule(call_id=CALLS, amount=SUMS)
    def pay(self, call_id: str, amount: int) -> None:
        """Ask for a call; if it is allowed, a person has approved this very action, and it was not used before."""
        decision = self.run.before_tool("pay", {"sum": amount}, call_id)
        self._detect()
        if decision.action is Action.ALLOW:
            assert decision.question_id is not None
            assert decision.question_id in self.approved
            assert decision.question_id not in self.used
            assert bytes(self.asked[decision.question_id].args) == b'{"sum":%d}' % amount  # type: ignore[arg-type]  # raw JSON
            self.used.append(decision.question_id)
            self.run.after_tool(call_id, result="done")
        elif decision.action is Action.BLOCK:
            assert decision.message

    @precondition(lambda self: bool(self.asked))
    @rule(data=st.data(), decision=DECISIONS, is_of_this=st.sampled_from([True, True, False]))
    def say(self, data: st.DataObject, decision: str, is_of_this: bool) -> None:
        """A person answers a question, perhaps one that is over, perhaps for another action."""
        # The newest first: it is the one that waits.
        question_id = data.draw(st.sampled_from(list(reversed(self.asked))))
        wait = self.asked[question_id]
        action = wait.action_hash if is_of_this else "0" * 16
        self.version += 1
        now_ms = self.transport.clock.broker_ms()
        self.transport.state(
            answer(
                question_id,
                decision,
                action_hash=action or "",
                version=(self.version, 0),
                expires_at_ms=now_ms + TIMEOUT_MS,
            )
        )
        if decision != "later":
            # A newer answer takes the place of the one before it.
            self.approved.discard(question_id)
            if decision == "approved" and is_of_this:
                self.approved.add(question_id)
        self.bench.pump()

    @rule(ms=st.sampled_from([1_000, TIMEOUT_MS + 1]))
    def wait(self, ms: int) -> None:
        """Time passes."""
        self.transport.clock.advance(ms)

    @rule()
    def restart(self) -> None:
        """The process dies without a word, after what it reported was sent, and another takes the run up."""
        self._detect()
        self.bench = self._process()
        self.transport._position = 0
        self.bench.pump()
        self.run = self.bench.guard.run(RUN).__enter__()

    @invariant()
    def nothing_failed(self) -> None:
        """A fault of ours would be counted."""
        assert self.bench.guard.stats().get("faults", 0) == 0
        assert self.transport.clock.broker_ms() >= START_MS


TestPeople = People.TestCase
TestPeople.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
