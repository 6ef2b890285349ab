"""The Faust app of the detector: settings, the batched transport, and the table that snapshots land in."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import faust

from loopwarden_streams import landing_store
from loopwarden_streams.kafka_client import faust_credentials
from loopwarden_streams.partition import SOURCES
from loopwarden_streams.settings import Settings
from loopwarden_streams.transport import use_batches

# Batches that may wait in a hot topic's queue, over all its partitions. The default of 4,096 would be two million
# records; fewer than sixteen leave the loop idle while the fetcher sleeps.
HOT_QUEUE_BATCHES = 32
# Changelog batches that recovery gathers before it applies them; 1 means something else to Faust.
RECOVERY_BATCHES = 8


def make_app(settings: Settings, data_dir: Path) -> faust.App:
    """Return the configured app, without agents.

    Args:
        settings: Of the worker.
        data_dir: Directory that Faust may write to. One for each process.
    """
    seconds = settings.session_timeout_ms / 1000
    app = faust.App(
        settings.app_id,
        # Without a prefix of its own, BROKER_URL and a hundred more variables of the environment override all this.
        env_prefix="LOOPWARDEN_FAUST_",
        broker=[f"kafka://{broker}" for broker in settings.broker_list()],
        broker_credentials=faust_credentials(settings),
        datadir=str(data_dir),
        store="memory://",
        processing_guarantee="at_least_once",
        broker_commit_interval=1.0,
        broker_session_timeout=seconds,
        broker_heartbeat_interval=seconds / 4,
        broker_request_timeout=max(30.0, seconds),
        # Bounds the checkpoint that a revoke waits for.
        broker_rebalance_timeout=30.0,
        consumer_max_fetch_size=settings.max_fetch_bytes,
        consumer_auto_offset_reset=settings.start_at,
        consumer_group_instance_id=settings.instance or None,
        # With it on, a revoke waits for acknowledgements that only the checkpoint after it gives.
        stream_wait_empty=False,
        producer_request_timeout=30.0,
        table_standby_replicas=0,
        topic_allow_declare=False,
        topic_disable_leader=True,
        topic_partitions=settings.partitions,
        topic_replication_factor=settings.replication,
        web_enabled=False,
        worker_redirect_stdouts=False,
    )
    hot = [settings.topic(source) for source in SOURCES]
    use_batches(app, [*hot, changelog_name(settings)])
    landing_store.register()
    return app


def changelog_name(settings: Settings) -> str:
    """Return the topic that holds the snapshots."""
    return f"{settings.app_id}-runs-changelog"


def hot_topic(app: faust.App, settings: Settings, source: str) -> faust.TopicT:
    """Declare a topic that is delivered in batches; only a checkpoint moves its offsets."""
    return app.topic(
        settings.topic(source),
        key_type=bytes,
        value_type=bytes,
        key_serializer="raw",
        value_serializer="raw",
        partitions=settings.partitions,
        acks=False,
        maxsize=HOT_QUEUE_BATCHES,
    )


def runs_table(app: faust.App, settings: Settings) -> faust.Table[bytes, bytes]:
    """Declare the plain table of snapshots, one row per run tree. Types `bytes` mean raw to Faust."""
    table = app.Table(
        "runs",
        store=landing_store.STORE_URL,
        partitions=settings.partitions,
        key_type=bytes,
        value_type=bytes,
        recovery_buffer_size=RECOVERY_BATCHES,
    )
    return cast("faust.Table[bytes, bytes]", table)
