"""An application that declares a schedule of a handler that it lacks."""

from __future__ import annotations

from queuety import Queuety

app = Queuety()


@app.job
def report() -> None:
    pass


app.schedule("reprot", every="1h")
