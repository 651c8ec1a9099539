"""The documentation says what is there."""

from __future__ import annotations

import contextlib
import inspect
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from queuety.cli.invocation import Invocation
from queuety.cli.main import cli
from queuety.errors import QueuetyError
from queuety.process.supervisor import Supervisor
from queuety.settings import ELSEWHERE, SETTINGS
from tests import ROOT
from tests.documents import Block, blocks, documents

DOCUMENTS = documents()
BLOCKS = [block for file in DOCUMENTS for block in blocks(file)]
SHELL = ("console", "bash", "sh", "shell")
# Hosts of the outside world: a link rots, and packages are named by their names alone.
OUTSIDE = re.compile(r"https?://(?!(?:[\w.-]*\.)?example\.|localhost|127\.)[\w.-]+")


def named(value: object) -> str:
    return str(value.relative_to(ROOT)) if isinstance(value, Path) else str(value)


# ── commands in the text ──────────────────────────────────────────────────────────────────────────────────────


def commands(block: Block) -> Iterator[list[str]]:
    """The arguments of each `queuety …` in a block of shell commands, placeholders included."""
    text = block.text.replace("\\\n", " ")
    for line in text.splitlines():
        line = line.strip().removeprefix("$ ")
        yield from (shlex.split(inner) for inner in re.findall(r"\$\(queuety ([^)]*)\)", line))
        words: list[str] = []
        for word in [*_words(re.sub(r"\$\([^)]*\)", "X", line)), ";"]:
            if set(word) <= set(";|&<>()"):
                if "queuety" in (names := [Path(one).name for one in words]):
                    place = names.index("queuety")
                    if all("=" in one or one in ("sudo", "exec", "time", "timeout") for one in words[:place]):
                        yield words[place + 1 :]
                words = []
            else:
                words.append(word)


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    return list(lexer)


def parse(arguments: list[str]) -> None:
    """Parse as the command line would, options and values, and run nothing."""
    command: click.Command = cli
    parent: click.Context | None = None
    while True:
        ctx = command.make_context(
            command.name or "queuety", list(arguments), parent=parent, obj=Invocation({})
        )
        if not isinstance(command, click.Group):
            return
        rest = [*getattr(ctx, "_protected_args", ()), *ctx.args]
        if not rest:
            return
        _, found, arguments = command.resolve_command(ctx, rest)
        assert found is not None
        command, parent = found, ctx


def shown() -> Iterator[tuple[Path, list[str]]]:
    """Every command of a block, and every one within a sentence; there words in capitals stand for values."""
    for block in BLOCKS:
        if block.language in SHELL:
            yield from ((block.file, arguments) for arguments in commands(block))
    for file in DOCUMENTS:
        for text in re.findall(r"(?<!`)`queuety ([a-z-][^`]*)`", prose(file)):
            if not set(text) & set("|…["):
                yield file, shlex.split(re.sub(r"\bID\b", "4711", text))


def prose(file: Path) -> str:
    return re.sub(r"^ *```.*?^ *```", "", file.read_text(), flags=re.MULTILINE | re.DOTALL)


SHOWN = [
    pytest.param(arguments, id=f"{named(file)}: {' '.join(arguments)}"[:100]) for file, arguments in shown()
]


@pytest.mark.parametrize("arguments", SHOWN)
def test_a_command_that_is_shown_exists_with_its_options(arguments):
    try:
        with contextlib.suppress(click.exceptions.Exit):  # --help, --version
            parse(arguments)
    except (click.UsageError, QueuetyError) as error:
        pytest.fail(f"queuety {' '.join(arguments)}: {error}")


@pytest.mark.parametrize(
    "wrong", ["nonsense", "work --nonsense", "work --workers=many", "job", "db nonsense"]
)
def test_a_command_that_does_not_exist_would_be_found(wrong):
    with pytest.raises((click.UsageError, QueuetyError)):
        parse(wrong.split())


def test_commands_are_found_behind_pipes_prompts_and_variables():
    text = '$ X=1 queuety jobs --json | jq .\npsql "$(queuety db url)"\nqueuety \\\n  status > out; echo queuety\n'
    block = Block(Path("x.md"), 1, "", "console", text)

    assert list(commands(block)) == [["jobs", "--json"], ["db", "url"], ["status"]]


def test_there_are_commands_in_the_documentation():
    assert len(SHOWN) > 50


# ── the rest of the text ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.file.name}:{block.line}")
def test_a_python_block_compiles(block):
    if block.language in ("python", "py"):
        compile("\n" * (block.line - 1) + block.text, block.file.name, "exec")
    else:
        assert "import queuety" not in block.text, "a block of Python without its language"


@pytest.mark.parametrize("file", DOCUMENTS, ids=named)
def test_every_relative_link_resolves(file):
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(file)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        other = (file.parent / name).resolve() if name else file
        assert other.exists(), f"{file.name}: {target}"
        if anchor and other.suffix == ".md":
            assert anchor in anchors(other), f"{file.name}: {target}"


def anchors(file: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", file.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("file", DOCUMENTS, ids=named)
def test_every_setting_that_is_named_exists(file):
    known = {setting.name for setting in SETTINGS} | set(ELSEWHERE) | {"QUEUETY_TEST_PG"}

    assert set(re.findall(r"QUEUETY_[A-Z_]+[A-Z]", file.read_text())) <= known


@pytest.mark.parametrize("file", DOCUMENTS, ids=named)
def test_nothing_is_named_that_only_this_machine_has(file):
    text = file.read_text()

    assert OUTSIDE.findall(text) == []
    assert str(ROOT) not in text


# ── generated pages ───────────────────────────────────────────────────────────────────────────────────────────


def test_the_generated_pages_are_what_the_code_says():
    done = subprocess.run(
        [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"], capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr


def test_a_page_that_has_drifted_is_told(tmp_path):
    copy = tmp_path / "generate.py"
    copy.write_text((ROOT / "docs" / "generate.py").read_text())
    (tmp_path / "settings.md").write_text("old")

    done = subprocess.run([sys.executable, str(copy), "--check"], capture_output=True, text=True)

    assert done.returncode == 1
    assert done.stderr.count("run `make docs`") == 2
    assert (tmp_path / "settings.md").read_text() == "old"


def test_every_signal_that_is_acted_upon_is_told():
    acted = set(re.findall(r"signal\.SIG([A-Z0-9]+)", inspect.getsource(Supervisor._on_signal)))
    text = (ROOT / "docs" / "commands.md").read_text().partition("## Signals")[2]

    assert acted
    assert set(re.findall(r"^\| `([A-Z0-9]+)`", text, flags=re.MULTILINE)) == acted
