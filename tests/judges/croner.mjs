// Answers questions about next ticks, one JSON object a line, until its input ends.
//   asked:    {"cron": "0 3 * * *", "zone": "Asia/Seoul", "after": "2026-01-01T00:00:00Z", "ticks": 3}
//   answered: {"ticks": ["2026-01-01T18:00:00.000Z", …]} or {"refused": "why"}
import { createInterface } from "node:readline";
import { Cron } from "croner";

function answer({ cron, zone, after, ticks }) {
  try {
    // sloppyRanges: 5/15 is a start with a step, as elsewhere.
    const runs = new Cron(cron, { timezone: zone, paused: true, sloppyRanges: true }).nextRuns(ticks, new Date(after));
    return { ticks: runs.map((run) => run.toISOString()) };
  } catch (error) {
    return { refused: String(error) };
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  process.stdout.write(JSON.stringify(answer(JSON.parse(line))) + "\n");
}
