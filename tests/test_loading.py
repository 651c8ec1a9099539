"""Loading the user's application: every way to fail is one line with the target and the cause."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from queuety import Queuety, loading
from queuety.errors import ImportFailed, UsageError
from queuety.settings import Settings


@pytest.fixture(autouse=True)
def clean_imports(monkeypatch):
    monkeypatch.setattr(sys, "path", list(sys.path))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        del sys.modules[name]


def write(folder: Path, name: str, text: str) -> str:
    (folder / f"{name}.py").write_text(text)
    return f"{name}:app"


def test_an_application_is_found_in_the_directory(tmp_path):
    target = write(tmp_path, "found_app", "from queuety import Queuety\napp = Queuety()")

    assert isinstance(loading.load(target, tmp_path), Queuety)


def test_an_attribute_may_have_parts(tmp_path):
    write(tmp_path, "parted_app", "from queuety import Queuety\nclass Shop:\n    app = Queuety()")

    assert isinstance(loading.load("parted_app:Shop.app", tmp_path), Queuety)


@pytest.mark.parametrize(
    "target", ["", "app", "a:", ":b", "a b:c", "app.py:app", "../app:app", "a:b:c", "1:2"]
)
def test_a_target_of_another_form_is_a_usage_error(target):
    with pytest.raises(UsageError, match="cannot be meant") as caught:
        loading.load(target)
    assert not isinstance(caught.value, ImportFailed)


FAILURES = {
    "syntax_app": ("def oops(:", "SyntaxError"),
    "exit_app": ("raise SystemExit(3)", "ended the process with 3"),
    "need_app": ("import no_such_module_at_all", "no_such_module_at_all"),
    "error_app": ("1 / 0", "ZeroDivisionError: division by zero (error_app.py, line 1)"),
    "empty_app": ("", "no attribute 'app'"),
    "wrong_app": ("app = object()", "of type object, not Queuety"),
    "base_app": ("class Odd(BaseException): pass\nraise Odd('odd')", "Odd: odd"),
    "mute_app": (
        "class Mute(Exception):\n    def __str__(self): raise ValueError\nraise Mute",
        "its text cannot be had",
    ),
    "long_app": ("raise ValueError('x\\n' * 100000)", "ValueError: x x x"),
    "secret_app": ("raise ValueError('postgresql://u:hunter2@h/d')", "ValueError: postgresql://u:***@h/d"),
}


@pytest.mark.parametrize("name", FAILURES)
def test_a_failing_import_is_one_line_with_target_and_cause(tmp_path, name):
    text, said = FAILURES[name]
    target = write(tmp_path, name, text)

    with pytest.raises(ImportFailed) as caught:
        loading.load(target, tmp_path)

    assert caught.value.exit_code == 70
    assert repr(target) in caught.value.message
    assert said in caught.value.message
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 700
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("target", ["no_such_app_module:app", "tests.no_such_app:app", "no_such.app:app"])
def test_a_missing_module_is_told_from_one_that_lacks_another(tmp_path, target):
    with pytest.raises(ImportFailed, match="there is no module"):
        loading.load(target, tmp_path)


def test_the_hint_names_the_application_that_the_module_has(tmp_path):
    write(tmp_path, "other_app", "from queuety import Queuety\nqueue = Queuety()")

    with pytest.raises(ImportFailed, match="other_app:queue"):
        loading.load("other_app:app", tmp_path)


def test_the_applications_own_settings_give_way_to_all_others(tmp_path):
    app = Queuety("postgresql://own/db", max_attempts=9, stale_timeout=7)
    own = loading.own_settings(app)

    nothing = loading.adopt(Settings.load({}, {}, tmp_path), own)
    environment = loading.adopt(Settings.load({}, {"QUEUETY_MAX_ATTEMPTS": "4"}, tmp_path), own)

    assert (nothing.database_url, nothing.max_attempts, nothing.stale_timeout) == (
        "postgresql://own/db",
        9,
        7,
    )
    assert nothing.origin("max_attempts") == "application"
    assert (environment.max_attempts, environment.stale_timeout) == (4, 7)


def test_a_bound_application_works_where_it_is_told(tmp_path):
    app = Queuety("postgresql://own/db")

    loading.bind(app, Settings.load({"database_url": "postgresql://told/db"}, {}, tmp_path))

    assert app.url == "postgresql://told/db"
