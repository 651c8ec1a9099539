"""An application whose job counts what is there when it begins."""

from __future__ import annotations

from queuety import Context, Queuety

app = Queuety()


@app.job
def total(ctx: Context) -> None:
    with app.connection() as conn:
        conn.execute("INSERT INTO sums SELECT count(*) FROM changes")
