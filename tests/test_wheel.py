"""The installed package: what a user gets who never sees the repository."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from queuety.store import schema

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("dist")
    code = f"from hatchling.build import build_wheel; print(build_wheel({str(target)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    return target / done.stdout.split()[-1]


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of a fresh environment with the wheel in it; the dependencies are those of this one."""
    home = tmp_path_factory.mktemp("fresh") / "100%40 venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(home)], check=True)
    python = home / "bin" / "python"
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    done = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True)
    site = Path(done.stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return python


def run(python: Path, code: str, *arguments: str, cwd: Path) -> str:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(
        [str(python), "-c", code, *arguments], cwd=cwd, env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_wheel_carries_migrations_and_statements(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())

    assert {
        "queuety/migrations/env.py",
        "queuety/migrations/script.py.mako",
        "queuety/migrations/versions/0001_initial.py",
        "queuety/store/sql/prune_buried.sql",
        "queuety/py.typed",
    } <= names
    assert not [name for name in names if name.startswith(("migrations/", "tests/"))]
    assert not [name for name in names if "__pycache__" in name]


def test_the_installed_package_finds_its_migrations_from_anywhere(installed: Path, tmp_path: Path) -> None:
    code = "from queuety.store import migrations as m; print(m.head(), m.location().parent.name)"

    assert run(installed, code, cwd=tmp_path) == f"{schema.EXPECTED} queuety"


def test_the_installed_package_migrates_and_enqueues(installed: Path, tmp_path: Path, empty: str) -> None:
    code = """
import sys
from queuety.store import connect, migrations, retention, schema
migrations.migrate(sys.argv[1])
with connect.connect(sys.argv[1]) as conn:
    schema.check_schema(conn)
    retention.prune(conn, 7, 7, 7)
    print(conn.execute("SELECT queuety.enqueue('{\\"handler\\": \\"add\\"}')").fetchone()[0])
"""

    assert run(installed, code, empty, cwd=tmp_path) == "1"


def test_the_installed_commands_migrate_enqueue_and_work(installed: Path, tmp_path: Path, empty: str) -> None:
    (tmp_path / "shop.py").write_text(
        "from queuety import Queuety\napp = Queuety()\n\n@app.job\ndef add(a: int, b: int) -> int:\n    return a + b\n"
    )
    command = "import sys; from queuety.cli.main import main; sys.argv[0] = 'queuety'; main()"

    def queuety(*arguments: str) -> str:
        return run(installed, command, "--app", "shop:app", "--database-url", empty, *arguments, cwd=tmp_path)

    queuety("db", "migrate")
    number = queuety("enqueue", "add", "--payload", '{"a": 1, "b": 2}')
    queuety("work", "--once")

    found = json.loads(queuety("job", number, "--json"))
    assert (found["state"], found["result"]) == ("completed", 3)
