"""Every Python block of the how-to runs, and every value that it tells is true."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from queuety import Queuety
from tests import ROOT
from tests.daemon import daemon, until
from tests.documents import Block, blocks, document

PAGE = document("how-to.md")
ALL = [block for block in blocks(PAGE) if block.language == "python"]
PRELUDE = ALL[0]
BY_PYTEST = "Test my application"
RECIPES = [title for title in dict.fromkeys(block.section for block in ALL[1:]) if title != BY_PYTEST]

_TOLD = re.compile(r"^(?P<value>\S.*?)  # → (?P<expected>.+)$", re.MULTILINE)


def program(*parts: Block) -> str:
    """The blocks as one program; each value that is told becomes an assertion, each line keeps its number."""
    code = [""] * (parts[-1].line + parts[-1].text.count("\n"))
    for part in parts:
        for place, line in enumerate(part.text.splitlines()):
            code[part.line + place - 1] = _TOLD.sub(_assertion, line)
    return "\n".join(code) + "\n"


def _assertion(told: re.Match[str]) -> str:
    return f"_told = {told['value']}; assert _told == {told['expected']}, _told"


def recipe(title: str) -> list[Block]:
    return [PRELUDE, *(block for block in ALL[1:] if block.section == title)]


@pytest.fixture
def elsewhere(database: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """The test's database in the environment, and a current directory of our own."""
    monkeypatch.setenv("QUEUETY_DATABASE_URL", database)
    monkeypatch.chdir(tmp_path)
    return database


def test_no_block_of_the_page_is_left_out():
    run = [block for title in RECIPES for block in recipe(title)[1:]]

    assert len(run) + len(recipe(BY_PYTEST)[1:]) + 1 == len(ALL)
    assert len(RECIPES) > 15


@pytest.mark.parametrize("title", RECIPES)
def test_a_recipe_does_what_it_says(title, elsewhere, monkeypatch):
    module = types.ModuleType("recipe")
    monkeypatch.setitem(sys.modules, "recipe", module)

    try:
        exec(compile(program(*recipe(title)), str(PAGE), "exec"), vars(module))
    finally:
        module.app.close()


def test_the_fixture_for_tests_works(tmp_path):
    # As root the server runs as another user, who may not enter pytest's own folder: the recipe uses its own.
    file = tmp_path / "test_shop.py"
    file.write_text(program(*recipe(BY_PYTEST)))
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("QUEUETY_", "PG"))}
    clean.pop("DATABASE_URL", None)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(file)],
        env={**clean, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=100,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def test_a_handler_that_asks_is_cancelled_in_a_pool_as_the_recipe_says(database, tmp_path):
    definition = recipe("Cancel a job")[:2]
    (tmp_path / "shop.py").write_text(program(*definition))
    app = Queuety(database)
    log = tmp_path / "log"

    with daemon(database, app="shop:app", log=log, env={"PYTHONPATH": f"{tmp_path}:{ROOT}"}) as pool:
        pool.ready()
        handle = app.enqueue("watch")
        until(handle.events, what="progress")
        handle.cancel()
        job = handle.wait(timeout=20)

    assert job.state == "cancelled"
    assert [event.data for event in handle.events() if event.type == "partial"]


def test_the_sql_for_other_languages_works(conn):
    for block in blocks(PAGE):
        if block.language == "sql":
            for statement in filter(str.strip, block.text.split(";\n")):
                assert len(conn.execute(statement).fetchall()) == 1

    assert conn.execute("SELECT queue, priority FROM queuety.jobs ORDER BY id").fetchall() == [
        ("mail", 1),
        ("default", 2),
    ]
