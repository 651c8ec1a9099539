"""The simulated pool of docs/scaling.md: the page says what the policy does."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from dataclasses import replace
from types import ModuleType

import pytest

from tests import ROOT


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("simulate", ROOT / "docs" / "simulate.py")
    assert spec
    assert spec.loader
    module = sys.modules["simulate"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


simulate = load()
STORIES = {story.name.partition(":")[0]: story for story in simulate.STORIES}


def played(name, *, target=False, **limits):
    story = STORIES[name]
    limits = replace(story.limits, target_wait_s=target * story.target_s, **limits)
    return simulate.simulate(story, limits)


def test_the_plot_and_the_figures_are_what_the_policy_does():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "simulate.py"), "--check"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", STORIES)
def test_with_a_target_jobs_wait_no_longer_than_that(name):
    assert played(name, target=True).late(1.0) <= STORIES[name].target_s


@pytest.mark.parametrize("name", STORIES)
def test_a_target_never_takes_more_workers_or_more_changes(name):
    plain, aimed = played(name), played(name, target=True)

    assert aimed.most <= plain.most
    assert aimed.changes <= plain.changes


@pytest.mark.parametrize("name", STORIES)
def test_without_a_target_jobs_wait_for_a_look_and_a_start_at_most_while_there_are_workers_left(name):
    story = STORIES[name]
    run = played(name, maximum=1000)

    assert run.most < 1000
    assert run.late(1.0) <= story.limits.interval_s + simulate.BOOT_S


def test_a_burst_is_answered_at_the_next_look_and_forgotten_after_the_grace():
    limits = STORIES["burst"].limits
    ((came, _),) = STORIES["burst"].at_once
    run = played("burst")
    full = [at for at, size in run.sizes if size == limits.maximum]
    busy_until = max(at + waited for at, waited in run.waits if at < came + 30)

    assert full[0] <= came + limits.interval_s
    assert full[-1] <= busy_until + limits.grace_s + 2 * limits.interval_s


def test_the_pool_is_at_its_least_some_time_after_the_load_has_ended():
    assert played("ramp").sizes[-1][1] == 1
