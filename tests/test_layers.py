"""Who may import whom. A small test keeps the house standing."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import queuety
from tests import ROOT

PACKAGE = ROOT / "queuety"

# Each part of the package and how high it stands: a module imports from its own part or from lower ones.
HEIGHT = {
    "errors": 0,
    "model": 0,
    "cpu": 1,
    "units": 1,
    "redaction": 1,
    "names": 2,
    "listeners": 2,
    "unique": 2,
    "limits": 3,
    "texts": 2,
    "strict": 2,
    "tracing": 1,
    "conversion": 2,
    "payload": 3,
    "settings": 3,
    "plain": 3,
    "policy": 4,
    "store": 4,
    "embedded": 4,
    "features": 5,
    "watching": 5,
    "context": 5,
    "delivery": 6,
    "handle": 6,
    "handler": 6,
    "schedule": 7,
    "process": 7,
    "schedules": 8,
    "webhooks": 8,
    "lone": 8,
    "app": 9,
    "loading": 10,
    "demo": 11,
    "web": 11,
    "cli": 12,
}
STRANGERS = [("store", "policy"), ("policy", "store"), ("store", "embedded"), ("embedded", "store")]
HOMES = {
    "sqlalchemy": {"store"},
    "alembic": {"store"},
    "psycopg": {"store"},
    "click": {"cli"},
    "rich": {"cli"},
    "croniter": set(),  # a judge in the tests
    "opentelemetry": {"tracing"},
    "psutil": {"process"},
    "setproctitle": {"process"},
    "starlette": {"web"},
    "uvicorn": {"web"},
    "sse_starlette": {"web"},
    "anyio": {"web"},
}


def part(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def imports(path: Path) -> list[tuple[str, bool]]:
    """Modules that a file imports, and whether only for type checkers."""
    tree = ast.parse(path.read_text())
    typing_only = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and "TYPE_CHECKING" in ast.unparse(block.test)
        for child in block.body
        for node in ast.walk(child)
    }
    found = []
    for node in ast.walk(tree):
        quiet = id(node) in typing_only
        if isinstance(node, ast.Import):
            found += [(name.name, quiet) for name in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [(f"{node.module}.{name.name}", quiet) for name in node.names]
    return found


FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py" or path.parent != PACKAGE)


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_downwards(path: Path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    for module, typing_only in imports(path):
        if not module.startswith("queuety.") or typing_only:
            continue
        other = part(module)
        if other == "__version__":
            continue
        other = "app" if other in queuety.__all__ else other
        assert HEIGHT[other] <= HEIGHT[own], f"{own} imports {module}"
        assert other == own or HEIGHT[other] < HEIGHT[own], f"{own} and {other} stand side by side: {module}"
        assert (own, other) not in STRANGERS, f"{own} imports {module}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_each_foreign_library_has_one_home(path: Path):
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")

    for module, typing_only in imports(path):
        library = module.split(".")[0]
        if library in HOMES and not typing_only:
            assert own in HOMES[library], f"{own} imports {library}"


def test_the_supervisor_has_no_database_code_and_no_user_code():
    script = """
import sys
import queuety.process.supervisor, queuety.embedded, queuety.settings
bad = {"psycopg", "sqlalchemy", "alembic", "queuety.app", "queuety.process.worker"} & set(sys.modules)
bad |= {name for name in sys.modules if name.startswith("queuety.store.")}
print(sorted(bad))
"""

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert said.stdout.strip() == "[]"


def test_the_hot_path_does_without_sqlalchemy():
    script = """
import sys
import queuety.process.worker, queuety.process.keeper, queuety.app
print(sorted({"sqlalchemy", "alembic", "click"} & set(sys.modules)))
"""

    said = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=ROOT, check=True
    )

    assert said.stdout.strip() == "[]"
