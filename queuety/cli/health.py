"""Commands that say what is wrong: why, doctor."""

from __future__ import annotations

import click

from queuety.cli import kinds
from queuety.cli.invocation import current
from queuety.cli.output import print_json, print_table, say

_CHECK_FAILED = 8


@click.command()
@click.argument("job_id", metavar="ID", type=kinds.JOB_ID)
@kinds.as_json
def why(job_id: int, json_: bool) -> None:
    """Say why a job does not run now; or that it does, or how it ended.

    \b
    queuety why 4711
    """
    with current().caller() as app:
        found = app.why(job_id)
    if json_:
        reasons = [{"kind": one.kind, "text": one.text, **one.figures} for one in found.reasons]
        print_json({"id": found.id, "state": found.state, "reasons": reasons})
        return
    for one in found.reasons:
        say(f"job {found.id} is {found.state}: {one.text}")


@click.command()
@kinds.as_json
def doctor(json_: bool) -> int:
    """Look at everything that can be wrong with the installation; exits with 8 if a check failed.

    \b
    queuety doctor
    """
    with current().caller() as app:
        checks = app.doctor()
    failed = sum(check.level == "fail" for check in checks)
    if json_:
        rows = [{"name": one.name, "level": one.level, "text": one.text, **one.figures} for one in checks]
        print_json({"ok": not failed, "checks": rows})
    else:
        print_table(["", "check", "found"], [(one.level, one.name, one.text) for one in checks])
        warned = sum(check.level == "warn" for check in checks)
        say(f"{len(checks)} checks: {failed} failed, {warned} warned")
    return _CHECK_FAILED if failed else 0
