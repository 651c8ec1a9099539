from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from queuety.errors import UsageError
from queuety.settings import SETTINGS, Settings


@pytest.fixture
def load(tmp_path):
    """Load settings from nothing but what the test gives."""

    def load(options=None, environ=None, file=None, project=None):
        if file is not None:
            (tmp_path / "queuety.toml").write_text(file, "utf-8")
        if project is not None:
            (tmp_path / "pyproject.toml").write_text(project, "utf-8")
        return Settings.load(options, environ or {}, tmp_path)

    return load


def test_without_anything_every_setting_has_its_default(load):
    assert load() == Settings()


def test_the_defaults_are_those_of_the_contract():
    settings = Settings()

    assert settings.database_url is None
    assert settings.app is None
    assert settings.worker_sleep == 1
    assert settings.worker_max_jobs == 1000
    assert settings.worker_min_age == 60
    assert settings.worker_max_memory == 128 * 1024 * 1024
    assert settings.worker_stop_timeout == 30
    assert settings.stale_timeout == 60
    assert settings.max_execution_time == 300
    assert settings.max_attempts == 3
    assert settings.retry_backoff == "exponential"
    assert settings.unknown_handler_grace == 600
    assert settings.resource_admission
    assert settings.resource_profile_window_minutes == 60 * 60
    assert settings.resource_profile_ttl == 60
    assert settings.resource_memory_headroom_mb == 16 * 1024 * 1024
    assert settings.resource_system_memory_awareness
    assert settings.resource_system_memory_headroom_mb == 128 * 1024 * 1024
    assert settings.resource_time_headroom_ms == 0.5
    assert (settings.retention_days, settings.buried_retention_days, settings.log_retention_days) == (7, 7, 7)
    assert settings.result_limit == settings.payload_limit == 1024 * 1024
    assert (settings.log_level, settings.log_format) == ("info", "console")


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_default_is_a_value_that_the_setting_accepts(setting):
    if setting.default is not None:
        assert setting.read(setting.show(setting.default)) == setting.default


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.key)
def test_every_setting_has_a_name_an_option_and_a_help_text(setting):
    assert setting.name == f"QUEUETY_{setting.key.upper()}"
    assert setting.option.startswith("--")
    assert setting.help.endswith(".")


def test_no_two_settings_share_an_option():
    assert len({setting.option for setting in SETTINGS}) == len(SETTINGS)


def test_an_option_wins_over_the_environment_that_over_the_file(load):
    file = "max_attempts = 4\nworker_sleep = '4s'\nstale_timeout = 4"
    environ = {"QUEUETY_MAX_ATTEMPTS": "5", "QUEUETY_WORKER_SLEEP": "5"}

    settings = load({"max_attempts": "6", "worker_sleep": None}, environ, file)

    assert (settings.max_attempts, settings.worker_sleep, settings.stale_timeout) == (6, 5, 4)


def test_the_origin_of_each_value_is_known(load, tmp_path):
    settings = load({"max_attempts": 6}, {"QUEUETY_WORKER_SLEEP": "5"}, "stale_timeout = 4")

    assert settings.origin("max_attempts") == "option --max-attempts"
    assert settings.origin("worker_sleep") == "environment QUEUETY_WORKER_SLEEP"
    assert settings.origin("stale_timeout") == f"file {tmp_path / 'queuety.toml'}"
    assert settings.origin("app") == "default"


def test_database_url_is_used_after_queuety_database_url(load):
    both = {"DATABASE_URL": "postgresql://b", "QUEUETY_DATABASE_URL": "postgresql://a"}

    assert load(environ=both).database_url == "postgresql://a"
    assert load(environ={"DATABASE_URL": "postgresql://b"}).database_url == "postgresql://b"
    assert (
        load(environ={"DATABASE_URL": "postgresql://b"}).origin("database_url") == "environment DATABASE_URL"
    )


def test_database_url_wins_over_the_file(load):
    settings = load(environ={"DATABASE_URL": "postgresql://b"}, file='database_url = "postgresql://c"')

    assert settings.database_url == "postgresql://b"


def test_an_empty_environment_variable_counts_as_not_set(load):
    assert load(environ={"QUEUETY_APP": "", "QUEUETY_MAX_ATTEMPTS": ""}) == Settings()


def test_the_project_file_serves_where_there_is_no_own_file(load):
    assert load(project="[tool.queuety]\napp = 'a:b'").app == "a:b"


def test_the_own_file_hides_the_project_file(load):
    assert load(file="", project="[tool.queuety]\napp = 'a:b'").app is None


def test_a_project_file_without_our_table_is_passed_over(load, tmp_path):
    (tmp_path / "queuety.toml").write_text("app = 'a:b'")
    inner = tmp_path / "x" / "y"
    inner.mkdir(parents=True)
    (inner / "pyproject.toml").write_text("[project]\nname = 'queuety-user'")

    assert Settings.load({}, {}, inner).app == "a:b"


def test_a_broken_project_file_that_does_not_speak_of_us_is_passed_over(load):
    assert load(project="[[[") == Settings()


def test_sizes_are_bytes_and_a_bare_number_of_memory_counts_megabytes(load):
    settings = load(environ={"QUEUETY_WORKER_MAX_MEMORY": "256", "QUEUETY_PAYLOAD_LIMIT": "2048"})

    assert settings.worker_max_memory == 256 * 1024 * 1024
    assert settings.payload_limit == 2048


@pytest.mark.parametrize("file", ["max_atempts = 4", "QUEUETY_MAX_ATTEMPTS = 4", "max-attempts = 4"])
def test_an_unknown_key_in_the_file_is_an_error_with_a_suggestion(load, file):
    with pytest.raises(UsageError, match=r"queuety\.toml.*did you mean max_attempts"):
        load(file=file)


def test_an_unknown_option_is_an_error_with_a_suggestion(load):
    with pytest.raises(UsageError, match=r"unknown option: 'worker_slep' \(did you mean worker_sleep"):
        load({"worker_slep": 1})


def test_an_unknown_environment_variable_only_warns(load):
    settings = load(environ={"QUEUETY_WORKER_SLEP": "x", "OTHER": "x"})

    assert len(settings.warnings) == 1
    assert "QUEUETY_WORKER_SLEP " in settings.warnings[0]
    assert "did you mean QUEUETY_WORKER_SLEEP?" in settings.warnings[0]


def test_variables_of_other_parts_do_not_warn(load):
    assert load(environ={"QUEUETY_PG_BIN": "/x", "QUEUETY_DATA_DIR": "/y"}).warnings == ()


@pytest.mark.parametrize(
    ("sources", "place"),
    [
        (({"worker_sleep": "soon"},), r"\(option --sleep\)"),
        (({}, {"QUEUETY_WORKER_SLEEP": "soon"}), r"\(environment QUEUETY_WORKER_SLEEP\)"),
        (({}, {}, "worker_sleep = 'soon'"), r"\(file .*queuety\.toml\)"),
    ],
)
def test_a_bad_value_names_setting_value_source_and_what_is_accepted(load, sources, place):
    with pytest.raises(UsageError, match=rf"worker_sleep = 'soon' {place}: is not a duration .*5m"):
        load(*sources)


@pytest.mark.parametrize(
    "options",
    [
        {"worker_sleep": 0}, {"worker_sleep": "nan"}, {"worker_sleep": float("inf")}, {"max_attempts": 0},
        {"max_attempts": 1001}, {"max_attempts": True}, {"max_attempts": 1.5}, {"retry_backoff": "often"},
        {"log_level": "loud"}, {"stale_timeout": "100ms"}, {"worker_max_memory": "-1"}, {"app": ""},
        {"app": 5}, {"result_limit": "1TB"}, {"retention_days": "7.5"}, {"database_url": 5},
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_meant_is_refused(load, options):
    with pytest.raises(UsageError):
        load(options)


def test_a_file_that_is_not_toml_is_an_error_with_its_place(load):
    with pytest.raises(UsageError, match=r"queuety\.toml is not TOML.*line 1"):
        load(file="worker_sleep = 5m")


def test_a_file_that_is_not_utf8_is_a_usage_error(tmp_path):
    (tmp_path / "queuety.toml").write_bytes(b"app = '\xff'")

    with pytest.raises(UsageError, match="cannot read"):
        Settings.load({}, {}, tmp_path)


def test_a_current_directory_that_is_gone_means_no_file(monkeypatch):
    def gone():
        raise FileNotFoundError

    monkeypatch.setattr(Path, "cwd", gone)

    assert Settings.load({}, {}) == Settings()


def test_printed_settings_do_not_show_the_password(load):
    settings = load({"database_url": "postgresql://u:secret@h"})

    assert "secret" not in repr(settings)
    assert settings.show("database_url") == "postgresql://u:***@h"


def test_a_refused_url_does_not_show_the_password(load):
    with pytest.raises(UsageError) as caught:
        load({"database_url": "postgresql://u:secret@h\0"})

    assert "secret" not in str(caught.value)


def test_values_are_shown_as_people_write_them(load):
    settings = load({"worker_sleep": "500ms"})

    keys = ("worker_sleep", "max_execution_time", "worker_max_memory", "app")
    assert [settings.show(key) for key in keys] == ["500ms", "5m", "128MB", ""]


def test_settings_cannot_be_changed(load):
    with pytest.raises(dataclasses.FrozenInstanceError):
        load().max_attempts = 5


def test_a_bare_number_counts_the_unit_that_the_settings_name_tells(load):
    settings = load(
        environ={
            "QUEUETY_RESOURCE_PROFILE_WINDOW_MINUTES": "5",
            "QUEUETY_RESOURCE_MEMORY_HEADROOM_MB": "32",
            "QUEUETY_RESOURCE_TIME_HEADROOM_MS": "250",
        }
    )

    assert settings.resource_profile_window_minutes == 300
    assert settings.resource_memory_headroom_mb == 32 * 1024 * 1024
    assert settings.resource_time_headroom_ms == 0.25
