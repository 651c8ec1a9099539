"""An application whose schedules are declared in every way."""

from __future__ import annotations

from queuety import Queuety

app = Queuety()


@app.schedule("0 3 * * *", timezone="Asia/Seoul", queue="reports", timeout=60)
def nightly(day: str = "yesterday") -> str:
    return day


@app.schedule(every="30 minutes", name="add-often", payload={"a": 1, "b": 2}, tags=["sums"])
@app.schedule("0 0 4 * * 1-5", name="add-early", payload={"a": 3, "b": 4}, priority="high")
@app.job(max_attempts=7)
def add(a: int, b: int) -> int:
    return a + b


app.schedule("later", cron="@hourly", payload={"to": "kim"})


@app.job
def later(to: str) -> None:
    """Registered after its schedule."""
