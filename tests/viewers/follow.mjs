// Follow a stream of events with npm's eventsource, which comes back by itself; write what arrived as JSON.
// node follow.mjs URL MILLISECONDS: so long after the final event it stays, to see whether it comes back for ever.
import { EventSource } from "eventsource";

const [url, stay] = process.argv.slice(2);
const events = [];
const source = new EventSource(url);
const end = () => {
  source.close();
  process.stdout.write(JSON.stringify({ events, state: source.readyState }));
};
const note = (event) => {
  events.push({ id: event.lastEventId, type: event.type, data: JSON.parse(event.data) });
  if (["job.completed", "job.failed", "job.canceled"].includes(event.type)) setTimeout(end, Number(stay));
};
for (const type of ["started", "progress", "partial", "completed", "failed", "canceled"]) {
  source.addEventListener(`job.${type}`, note);
}
