"""Applications that a test writes itself, so that it can give them another version while processes run."""

from __future__ import annotations

from pathlib import Path

from tests import ROOT

HEAD = '''
from __future__ import annotations

import json, os, time
from pathlib import Path
from queuety import Context, Queuety
from tests.apps.basic import noted

app = Queuety()
HERE = Path(__file__).parent


def told(event) -> None:
    """Add a line to the file of events; a single write."""
    line = json.dumps({
        "kind": event.kind, "schedule": event.schedule, "job": event.job_id, "reason": event.reason,
        "phase": event.phase, "error": (event.error or {}).get("type"), "at": event.at.isoformat(),
    })
    fd = os.open(HERE / "events", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(fd, (line + "\\n").encode())
    os.close(fd)


@app.job
def tick(ctx: Context, seconds: float = 0.0) -> None:
    with noted(ctx):
        time.sleep(seconds)


@app.job(max_attempts=1)
def fail(ctx: Context) -> None:
    raise ValueError("as it must")

'''


class Shop:
    """The module `shop` in a folder of the test; its application is shop:app."""

    target = "shop:app"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        self.env = {"PYTHONPATH": f"{folder}:{ROOT}", "PYTHONDONTWRITEBYTECODE": "1"}

    def write(self, text: str = "") -> None:
        """Give the application another version: what stands behind its handlers."""
        new = self.folder / "shop.new"
        new.write_text(HEAD + text)
        new.rename(self.folder / "shop.py")

    def events(self) -> list[dict[str, str]]:
        """What its callbacks were told so far, if they are `told`."""
        import json

        path = self.folder / "events"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
