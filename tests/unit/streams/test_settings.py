"""One settings object, from the environment and from flags."""

from __future__ import annotations

import argparse

import pytest

from loopwarden_models.errors import ConfigError
from loopwarden_streams.settings import Settings, add_settings_arguments


def parse(*flags: str) -> argparse.Namespace:
    """Return what the flags of a command say."""
    parser = argparse.ArgumentParser()
    add_settings_arguments(parser)
    return parser.parse_args(flags)


def test_the_environment_fills_every_kind_of_setting() -> None:
    """Texts, integers and numbers come as text from the environment; each must arrive as its own type."""
    settings = Settings.from_env(
        {
            "LOOPWARDEN_BROKERS": "a:1,b:2",
            "LOOPWARDEN_PARTITIONS": "24",
            "LOOPWARDEN_DEAD_LETTER_MAX_RATIO": "0.25",
            "PATH": "/bin",
        }
    )

    assert settings.broker_list() == ["a:1", "b:2"]
    assert settings.partitions == 24
    assert settings.dead_letter_max_ratio == 0.25


def test_a_flag_wins_over_the_environment() -> None:
    """The nearer word counts: an operator who types a flag means it."""
    settings = Settings.from_args(parse("--mode", "enforce"), {"LOOPWARDEN_MODE": "shadow", "LOOPWARDEN_PORT": "7000"})

    assert (settings.mode, settings.port) == ("enforce", 7000)


def test_a_misspelt_variable_is_an_error_that_names_the_right_one() -> None:
    """A setting that is silently ignored is found at three in the morning."""
    with pytest.raises(ConfigError, match="LOOPWARDEN_PARTITION is not a setting; did you mean LOOPWARDEN_PARTITIONS"):
        Settings.from_env({"LOOPWARDEN_PARTITION": "4"})


def test_variables_of_faust_and_of_the_tests_are_left_alone() -> None:
    """Both share the prefix, and neither is a setting of ours."""
    environ = {"LOOPWARDEN_FAUST_STREAM_BUFFER_MAXSIZE": "1", "LOOPWARDEN_TEST_REQUIRE_KAFKA": "1"}

    assert Settings.from_env(environ) == Settings()


@pytest.mark.parametrize(
    ("environ", "message"),
    [
        ({"LOOPWARDEN_PARTITIONS": "many"}, "LOOPWARDEN_PARTITIONS = 'many' is not an integer"),
        ({"LOOPWARDEN_DEAD_LETTER_MAX_RATIO": "x"}, "is not a number"),
        ({"LOOPWARDEN_PARTITIONS": "0"}, "partitions = 0 must be at least 1"),
        ({"LOOPWARDEN_PORT": "-1"}, "port = -1 must not be negative"),
        ({"LOOPWARDEN_MODE": "kill"}, "mode = 'kill' is not one of policy, off, shadow, warn, enforce"),
        ({"LOOPWARDEN_BROKERS": "kafka"}, "'kafka' is not host:port"),
        ({"LOOPWARDEN_SESSION_TIMEOUT_MS": "1000"}, "below the broker's limit"),
        ({"LOOPWARDEN_DEAD_LETTER_MAX_RATIO": "0"}, "must lie in"),
    ],
)
def test_an_impossible_value_is_refused_with_its_name(environ: dict[str, str], message: str) -> None:
    """The message must name the setting and the value, so that nobody has to search."""
    with pytest.raises(ConfigError, match=message):
        Settings.from_env(environ)


def test_a_secret_is_in_no_repr_and_has_no_flag() -> None:
    """Settings are logged, and flags are seen by every user of a machine."""
    settings = Settings(sasl_password="hunter2")  # noqa: S106 - the example

    assert "hunter2" not in repr(settings)
    with pytest.raises(SystemExit):
        parse("--sasl-password", "hunter2")
