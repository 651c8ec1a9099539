"""An application whose next version may be broken: QUEUETY_TEST_VERSION names a file that says how.

`ok`, `raise`, `exit` or `crash`: what importing it does; with ` later` behind it the first import, which is the look
before the fork, goes well.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from queuety import Context, Queuety
from tests.apps import basic
from tests.apps.basic import noted

_file = Path(os.environ["QUEUETY_TEST_VERSION"])
_imports = _file.with_suffix(".imports")
with _imports.open("a") as _log:
    _log.write(".")

_what, _, _when = _file.read_text().partition(" ")
if _when != "later" or _imports.stat().st_size > 1:
    if _what == "raise":
        raise ImportError("a broken version")
    if _what == "exit":
        os._exit(1)
    if _what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)

app = Queuety()
app.job(basic.sleep.function)


@app.job
def version(ctx: Context) -> str:
    with noted(ctx):
        return _what
