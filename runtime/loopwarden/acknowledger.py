"""Acknowledgements: what was done with a command, queued at once and sent when Kafka is there."""

from __future__ import annotations

from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.decisions import RunKey
from loopwarden.faults import Counters
from loopwarden.outbox import Outbox
from loopwarden.records import Outgoing
from loopwarden_models.acks import Ack
from loopwarden_models.codec import encode
from loopwarden_models.events import step_key

# About the size of an encoded acknowledgement; the queue is bounded by count first.
_SIZE_BYTES = 400
_MAX_DETAIL_CHARS = 1_024

# Below this a difference is the network's, not the clock's.
_NOTABLE_SKEW_MS = 1_000


class Acknowledger:
    """Writes acknowledgements with the times at which things happened. Thread-safe; never blocks."""

    def __init__(
        self, outbox: Outbox[Ack], *, runtime_id: str, clock: Clock, broker: BrokerClock, counters: Counters
    ) -> None:
        self._outbox = outbox
        self._runtime_id = runtime_id
        self._clock = clock
        self._broker = broker
        self._counters = counters

    def send(
        self, key: RunKey, command_id: str, status: str, *, append_ms: int | None = None, detail: str = ""
    ) -> None:
        """Queue one acknowledgement.

        Args:
            key: The run that answers: each run of a tree answers for itself.
            command_id: The command.
            status: As in the contract.
            append_ms: When the broker appended the command; gives `latency_ms`.
            detail: For people. The host's skew is added where it is notable.
        """
        at_ms = self._clock.unix_ms()
        broker_ms = self._broker.at(self._clock.monotonic_ms())
        latency_ms = None
        if append_ms is not None and broker_ms is not None:
            latency_ms = round(max(0.0, broker_ms - append_ms), 3)
        if broker_ms is not None and abs(at_ms - broker_ms) >= _NOTABLE_SKEW_MS:
            ahead_s = (at_ms - broker_ms) / 1_000
            note = f"host clock is {abs(ahead_s):.1f} s {'ahead of' if ahead_s > 0 else 'behind'} the broker's"
            detail = f"{detail}; {note}" if detail else note
        self._counters.add(f"acks_{status}")
        self._outbox.put(
            Ack(
                v=1,
                command_id=command_id,
                tenant=key.tenant,
                run_id=key.run_id,
                root_run_id=key.root_run_id,
                runtime_id=self._runtime_id,
                status=status,
                at_ms=at_ms,
                latency_ms=latency_ms,
                detail=detail[:_MAX_DETAIL_CHARS] or None,
            ),
            _SIZE_BYTES,
        )


def encode_ack(ack: Ack) -> Outgoing:
    """Return the record of an acknowledgement, in the partition of the run's steps."""
    return Outgoing(step_key(ack.tenant, ack.root_run_id or ack.run_id), encode(ack))
