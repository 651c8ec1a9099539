"""Simulate the adaptive pool and draw docs/scaling.svg; the figures go into docs/scaling.md.

python docs/simulate.py           write them
python docs/simulate.py --check   write nothing; exit with 1 if one of them differs

No database, no process, no clock: arrivals from a fixed seed, and the policy that a real pool asks.
"""

from __future__ import annotations

import heapq
import math
import random
import re
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from queuety.policy.scale import COUNTED, History, Limits, Look, decide

HERE = Path(__file__).resolve().parent
BOOT_S = 0.5  # from the fork of a worker to its first claim
BINS = 200


@dataclass(frozen=True, slots=True)
class Story:
    """One load. rate: jobs per second at a time.  at_once: (time, jobs).  mean_s: of the jobs' durations, which
    are even between half and one and a half of it."""

    name: str
    limits: Limits
    target_s: float
    length_s: float
    mean_s: float
    rate: Callable[[float], float]
    at_once: tuple[tuple[float, int], ...] = ()
    unit_s: float = 1.0
    unit: str = "s"

    def load(self, at: float) -> float:
        """Workers that the arrivals keep busy, apart from what comes at once."""
        return self.rate(at) * self.mean_s


STORIES = (
    Story(
        "burst: 200 jobs of 1 s at once",
        Limits(1, 40),
        target_s=10.0,
        length_s=120.0,
        mean_s=1.0,
        rate=lambda at: 0.5,
        at_once=((30.0, 200),),
    ),
    Story(
        "ramp: to 12 jobs of 1 s a second, and off",
        Limits(1, 40),
        target_s=5.0,
        length_s=480.0,
        mean_s=1.0,
        rate=lambda at: 12.0 * min(at / 300.0, 1.0) if at < 390.0 else 0.0,
    ),
    Story(
        "day: jobs of 20 s, calm by night, two peaks",
        Limits(1, 40, interval_s=10.0, grace_s=300.0),
        target_s=60.0,
        length_s=86_400.0,
        mean_s=20.0,
        rate=lambda at: (0.5 + 11.0 * (_hill(at / 3600, 10.5) + _hill(at / 3600, 15.5))) / 20.0,
        unit_s=3600.0,
        unit="h",
    ),
)


@dataclass(slots=True)
class Run:
    """What became of a story. sizes: (time, workers).  waits: (time of the start, seconds waited)."""

    sizes: list[tuple[float, int]]
    waits: list[tuple[float, float]]

    @property
    def changes(self) -> int:
        return sum(one[1] != other[1] for one, other in zip(self.sizes, self.sizes[1:], strict=False))

    @property
    def mean(self) -> float:
        return sum(size for _, size in self.sizes) / len(self.sizes)

    @property
    def most(self) -> int:
        return max(size for _, size in self.sizes)

    def late(self, share: float) -> float:
        """Seconds that this share of the jobs waited at most."""
        waits = sorted(waited for _, waited in self.waits)
        return waits[math.ceil(share * len(waits)) - 1]


def simulate(story: Story, limits: Limits) -> Run:
    """Play a story: jobs are begun in order by whoever is free, the policy is asked at each look."""
    jobs = _arrivals(story)
    waiting: deque[tuple[float, float]] = deque()
    free_at = [0.0] * limits.minimum  # a heap: when each worker is free
    running: list[tuple[float, float]] = []  # begin, end
    history, run, next_job = History(), Run([], []), 0
    for step in range(1, int(story.length_s / limits.interval_s) + 1):
        now = step * limits.interval_s
        while next_job < len(jobs) and jobs[next_job][0] <= now:
            waiting.append(jobs[next_job])
            next_job += 1
        while waiting and max(free_at[0], waiting[0][0]) < now:
            came, takes_s = waiting.popleft()
            begin = max(heapq.heappop(free_at), came)
            heapq.heappush(free_at, begin + takes_s)
            running.append((begin, begin + takes_s))
            run.waits.append((begin, begin - came))
        ended = [one for one in running if one[1] <= now]
        running = [one for one in running if one[1] > now]
        look = Look(
            elapsed_s=limits.interval_s,
            size=len(free_at),
            alive=len(free_at),
            busy=len(running),
            backlog=min(len(waiting), COUNTED),
            held=len(running),
            ended=len(ended),
            worked_s=sum(end - begin for begin, end in ended),
            start_s=BOOT_S,
            age_s=sum(now - begin for begin, _ in running) / max(len(running), 1),
        )
        decision, history = decide(limits, look, history)
        for _ in range(len(free_at), decision.size):
            heapq.heappush(free_at, now + BOOT_S)
        while len(free_at) > decision.size and free_at[0] <= now:
            heapq.heappop(free_at)
        run.sizes.append((now, len(free_at)))
    return run


def _arrivals(story: Story) -> list[tuple[float, float]]:
    """(time, seconds that it takes) of each job, in order: a Poisson stream of the story's rate, and its bursts."""
    dice = random.Random(17)
    most = max(story.rate(story.length_s * part / 1000) for part in range(1001))
    times = [at for at, count in story.at_once for _ in range(count)]
    at = 0.0
    while (at := at + _exponential(dice, 1 / most)) < story.length_s:
        if dice.random() * most < story.rate(at):
            times.append(at)
    return [(at, story.mean_s * (0.5 + dice.random())) for at in sorted(times)]


def _exponential(dice: random.Random, mean: float) -> float:
    return -math.log(1.0 - dice.random()) * mean


def _hill(hour: float, top: float) -> float:
    return math.exp(-(((hour - top) / 1.8) ** 2))


# ── the picture ───────────────────────────────────────────────────────────────────────────────────

WIDTH, HEIGHT, WAIT_HEIGHT = 430, 150, 60
LEFT, TOP, COLUMN, ROW = 48, 64, 500, 300
INK, GREY, LOAD, WORKERS, WAIT = "#222222", "#bbbbbb", "#d9d9d9", "#1f5fa8", "#b5322a"


def picture(runs: dict[Story, tuple[Run, Run]]) -> str:
    """An SVG: a row for each story; left without a target, right with one."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * COLUMN + 20} {TOP + ROW * len(runs) - 10}" '
        'font-family="sans-serif" font-size="11">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<rect x="{LEFT}" y="12" width="14" height="10" fill="{LOAD}"/>',
        _text(LEFT + 20, 21, "offered load, in workers that it keeps busy"),
        f'<path d="M{LEFT + 270} 17h14" stroke="{WORKERS}" stroke-width="2"/>',
        _text(LEFT + 290, 21, "workers"),
        f'<path d="M{LEFT + 350} 17h14" stroke="{WAIT}" stroke-width="2"/>',
        _text(LEFT + 370, 21, "longest wait, in seconds (dashed: the target)"),
    ]
    for row, (story, pair) in enumerate(runs.items()):
        tallest = max(run.most for run in pair)
        longest = max(max(waited for _, waited in run.waits) for run in pair)
        for column, run in enumerate(pair):
            parts += _panel(
                story, run, LEFT + column * COLUMN, TOP + row * ROW, tallest, longest, column * story.target_s
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _panel(
    story: Story, run: Run, x: float, y: float, tallest: float, longest: float, target_s: float
) -> list[str]:
    low = y + HEIGHT + 26
    across = WIDTH / story.length_s
    up = HEIGHT / (tallest * 1.08)
    up_wait = WAIT_HEIGHT / max(longest * 1.08, target_s * 1.2)
    width_s = story.length_s / BINS
    loads = [0.0] * BINS
    for at, takes_s in _arrivals(story):
        loads[min(int(at / width_s), BINS - 1)] += takes_s / width_s
    waits = [0.0] * BINS
    for at, waited in run.waits:
        place = min(int(at / width_s), BINS - 1)
        waits[place] = max(waits[place], waited)
    area = _steps(
        [(i * width_s, load) for i, load in enumerate(loads)], x, y + HEIGHT, across, up, tallest * 1.08
    )
    target = f"with --target-wait={target_s:g}s" if target_s else "without a target"
    parts = [
        _text(x, y - 8, f"{story.name}; {target}"),
        f'<path d="M{x} {y + HEIGHT}{area}V{y + HEIGHT}z" fill="{LOAD}"/>',
        f'<path d="M{x} {y + HEIGHT}{_steps(_thin(run.sizes), x, y + HEIGHT, across, up)}H{x + WIDTH}" '
        f'fill="none" stroke="{WORKERS}" stroke-width="1.6"/>',
        f'<path d="M{x} {low + WAIT_HEIGHT}'
        f'{_steps([(i * width_s, wait) for i, wait in enumerate(waits)], x, low + WAIT_HEIGHT, across, up_wait)}" '
        f'fill="none" stroke="{WAIT}" stroke-width="1.2"/>',
        *_axis(x, y + HEIGHT, HEIGHT, up, tallest),
        *_axis(x, low + WAIT_HEIGHT, WAIT_HEIGHT, up_wait, max(longest, target_s)),
    ]
    if target_s:
        level = low + WAIT_HEIGHT - target_s * up_wait
        parts.append(f'<path d="M{x} {level:.1f}h{WIDTH}" stroke="{WAIT}" stroke-dasharray="5 4"/>')
    every = _round(story.length_s / story.unit_s / 6)
    tick = 0.0
    while tick <= story.length_s / story.unit_s:
        parts.append(
            _text(
                x + tick * story.unit_s * across, low + WAIT_HEIGHT + 15, f"{tick:g} {story.unit}", "middle"
            )
        )
        tick += every
    return parts


def _steps(
    points: Sequence[tuple[float, float]],
    x: float,
    y: float,
    across: float,
    up: float,
    most: float = math.inf,
) -> str:
    """A line that goes on level until the next point."""
    return "".join(f"H{x + at * across:.1f}V{y - min(value, most) * up:.1f}" for at, value in points)


def _thin(sizes: list[tuple[float, int]]) -> list[tuple[float, float]]:
    """Only where the size changes."""
    kept: list[tuple[float, float]] = []
    for at, size in sizes:
        if not kept or kept[-1][1] != size:
            kept.append((at, size))
    return kept


def _axis(x: float, y: float, height: float, up: float, most: float) -> list[str]:
    parts = [f'<path d="M{x} {y - height}V{y}H{x + WIDTH}" fill="none" stroke="{GREY}"/>']
    every = _round(most / (height / 40))
    tick = 0.0
    while tick * up <= height:
        parts.append(_text(x - 5, y - tick * up + 4, f"{tick:g}", "end"))
        tick += every
    return parts


def _round(value: float) -> float:
    """The next of 1, 2, 5, 10, 20 …"""
    ten = 10.0 ** math.floor(math.log10(value))
    return next(ten * step for step in (1, 2, 5, 10) if ten * step >= value * 0.999)


def _text(x: float, y: float, text: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{INK}" text-anchor="{anchor}">{text}</text>'


# ── the page ──────────────────────────────────────────────────────────────────────────────────────


def figures(runs: dict[Story, tuple[Run, Run]]) -> str:
    """The table of the page."""
    lines = [
        "| load | target | most workers | on average | changes of size | half waited at most | 99 % | all |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for story, pair in runs.items():
        for run, target in zip(pair, ("none", f"{story.target_s:g} s"), strict=True):
            waits = " | ".join(f"{run.late(share):.1f} s" for share in (0.5, 0.99, 1.0))
            lines.append(
                f"| {story.name.partition(':')[0]} | {target} | {run.most} | {run.mean:.1f} | {run.changes} | {waits} |"
            )
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    runs = {
        story: (
            simulate(story, story.limits),
            simulate(story, replace(story.limits, target_wait_s=story.target_s)),
        )
        for story in STORIES
    }
    page = (HERE / "scaling.md").read_text()
    table = re.compile(r"(?<=<!-- simulated -->\n).*?(?=<!-- end -->)", re.DOTALL)
    files = {
        HERE / "scaling.svg": picture(runs),
        HERE / "scaling.md": table.sub(lambda _: f"\n{figures(runs)}\n\n", page),
    }
    stale = [path for path, text in files.items() if not path.is_file() or path.read_text() != text]
    if "--check" in arguments:
        for path in stale:
            print(f"{path.name} is not what the code says: run `make docs`", file=sys.stderr)
        return 1 if stale else 0
    for path in stale:
        path.write_text(files[path])
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
