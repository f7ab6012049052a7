// One job: its goals and figures, its operators and lanes, its latency, its epochs, and its story.
import { html, useMemo, useState, Card, Empty, Meter, Ranges, Stat, Time, Verdict, UNKNOWN, count, pace, percent, plural, points, seconds, share, verdictOf } from "./ui.js";
import { Legend, LineChart } from "./charts.js";
import { Change, Confirm } from "./dialogs.js";
import { Graph } from "./graph.js";
import { actionMark, effectText } from "./cluster.js";

export function JobPage({ job, story, range, choose, session, reload }) {
  const [dialog, setDialog] = useState(null);
  const [said, setSaid] = useState("");
  const { status } = job;
  const verdict = verdictOf(status);
  const runs = status.state === "running";
  const done = (kind) => {
    if (kind === "remove") { location.hash = "#/"; return; }
    setSaid({ pause: "Paused.", resume: "Resumed.", change: "Changed." }[kind]);
    reload();
  };
  const close = () => setDialog(null);
  return html`<div class="title">
    <h1>${job.name}</h1><${Verdict} verdict=${verdict} />
    <p class="note">tenant ${status.tenant} · intent ${status.intent || UNKNOWN} · worth ${points(status.worth)} · share ${status.share}${status.read_limit ? ` · at most ${count(status.read_limit)} rows per epoch` : ""}</p>
    <div class="buttons">
      <button type="button" onClick=${() => setDialog("change")}>Change …</button>
      ${runs || status.state === "starting" ? html`<button type="button" onClick=${() => setDialog("pause")}>Pause …</button>` : html`<button type="button" onClick=${() => setDialog("resume")}>Resume …</button>`}
      <button type="button" class="danger" onClick=${() => setDialog("remove")}>Remove …</button>
    </div>
    <p class="sr" role="status">${said}</p>
  </div>
  ${dialog === "change" ? html`<${Change} job=${job} session=${session} close=${close} done=${done} />` : null}
  ${["pause", "resume", "remove"].includes(dialog) ? html`<${Confirm} kind=${dialog} name=${job.name} session=${session} close=${close} done=${done} />` : null}
  ${status.reason ? html`<p class="banner ${verdict === "failed" ? "bad" : "warn"}"><b>${status.state}</b> ${status.reason}</p>` : null}
  <dl class="stats">
    <${Stat} label="Latency" value=${seconds(status.latency_s)} note=${status.latency_intent_s === null ? "no goal" : `goal ${seconds(status.latency_intent_s)}`} tone=${tone(status.latency_s, status.latency_intent_s, 1)} />
    <${Stat} label="Juice" value=${share(status.juice)} note=${status.juice_intent === null ? "no goal" : `goal ${share(status.juice_intent)}`} tone=${tone(status.juice, status.juice_intent, -1)} />
    <${Stat} label="Utility" value=${points(status.utility)} unit="of ${points(status.worth)}" note=${status.utility === null ? "not judged" : percent(status.utility / status.worth)} />
    <${Stat} label="Input" value=${count(status.arrival_rows_s)} unit="rows/s" note="${count(status.backlog)} rows wait" />
    <${Stat} label="Lanes" value=${job.lanes === null ? UNKNOWN : job.lanes} note=${pace(status.pace_s)} />
  </dl>
  <${LatencyCard} job=${job} range=${range} choose=${choose} />
  <${Card} title="Operators" id="operators" note="rows per second on the edges; busy is the share of time of the busiest lane">
    ${job.operators.length ? html`<${Graph} operators=${job.operators} edges=${job.edges} />` : html`<${Empty}>A job that does not run has no operators to measure.</${Empty}>`}
  </${Card}>
  <div class="columns">
    <${StoryCard} story=${story} now_s=${job.now_s} />
    <div class="stack">
      <${Lanes} operators=${job.operators} />
      <${Slices} operators=${job.operators} />
      <${Epochs} epochs=${job.epochs} now_s=${job.now_s} />
      <${Failures} failures=${job.failures} now_s=${job.now_s} />
    </div>
  </div>`;
}

const tone = (value, goal, sign) => (value === null || goal === null ? "" : sign * (value - goal) <= 0 ? "good" : "bad");

function LatencyCard({ job, range, choose }) {
  const found = job.latency;
  const measured = found.p50_s.some((value) => value !== null);
  const lines = [
    ...(measured ? [
      { label: "p50", values: found.p50_s, className: "p50" },
      { label: "p95", values: found.p95_s, className: "p95" },
      { label: "p99", values: found.p99_s, className: "p99" },
    ] : [{ label: "Latency", values: found.judged_s, className: "p50" }]),
    { label: "Goal", values: found.intent_s, className: "goal" },
  ];
  const marks = useMemo(() => job.actions.map(actionMark), [job]);
  return html`<${Card} title="Latency" id="latency" className="wide" aside=${html`<${Legend} lines=${lines} /><${Ranges} value=${range} choose=${choose} />`}>
    <${LineChart} times=${found.at_s} lines=${lines} from_s=${job.now_s - range} to_s=${job.now_s} show=${seconds} marks=${marks}
      label="Latency percentiles over time against the goal, with actions" summary="Latency is ${seconds(job.status.latency_s)} now, the goal ${seconds(job.status.latency_intent_s)}." />
    <div class="pair">
      ${[["Input, rows/s", found.arrival_rows_s], ["Backlog, rows", found.backlog]].map(([label, values]) => html`<div><h3>${label}</h3>
        <${LineChart} times=${found.at_s} height=${120} from_s=${job.now_s - range} to_s=${job.now_s} show=${count} area=${true}
          lines=${[{ label, values, className: "main" }]} label="${label} over time" summary="${label}: ${count(values[values.length - 1])} now." /></div>`)}
    </div>
  </${Card}>`;
}

function Lanes({ operators }) {
  const shown = operators.filter((one) => one.per_lane.length > 1);
  if (!shown.length) return null;
  return html`<${Card} title="Lanes" id="lanes" note="rows per second of each lane: unequal bars are skew">
    ${shown.map((one) => {
      const rows = one.per_lane.every((lane) => lane.rows_s !== null);
      const values = one.per_lane.map((lane) => (rows ? lane.rows_s : lane.busy));
      const most = Math.max(...values, rows ? 1 : 1e-9), mean = values.reduce((sum, value) => sum + value, 0) / values.length;
      const skewed = values.some((value) => value > 1.5 * mean && values.length > 1);
      return html`<h3>${one.name}${skewed ? html`<span class="tag">skewed: the fullest lane has ${(Math.max(...values) / mean).toFixed(1)} times the mean</span>` : null}</h3>
      <ul class="bars">${one.per_lane.map((lane, index) => html`<li><span class="lane">lane ${index}</span>
        <${Meter} value=${values[index]} most=${most} tone=${values[index] > 1.5 * mean ? "bad" : "plain"} label="lane ${index}: ${rows ? `${count(lane.rows_s)} rows per second, ` : ""}busy ${percent(lane.busy)}" />
        <span class="figure">${rows ? `${count(lane.rows_s)}/s` : ""}</span><span class="figure busy">${percent(lane.busy)} busy</span><span class="host">${lane.host || ""}</span></li>`)}</ul>`;
    })}
  </${Card}>`;
}

function Slices({ operators }) {
  const shown = operators.filter((one) => one.slices.length);
  if (!shown.length) return null;
  return html`<${Card} title="Keyed state" id="slices" note="slices of the keys by lane; the fuller a slice, the darker">
    ${shown.map((one) => {
      const most = Math.max(...one.slices.map((slice) => slice.rows_s), 1e-9);
      const lanes = [...new Set(one.slices.map((slice) => slice.lane))].sort((a, b) => a - b);
      return html`<h3>${one.name}<span class="tag plain">${plural(one.slices.length, "slice")}</span></h3><ul class="slices">${lanes.map((lane) => {
        const mine = one.slices.map((slice, number) => ({ ...slice, number })).filter((slice) => slice.lane === lane);
        const total = mine.reduce((sum, slice) => sum + slice.rows_s, 0);
        return html`<li><span class="lane">lane ${lane}</span><span class="cells" role="img" aria-label="${plural(mine.length, "slice")}, ${count(total)} rows per second">
          ${mine.map((slice) => html`<span class="cell heat-${Math.min(5, Math.round((5 * slice.rows_s) / most))}" title="slice ${slice.number}: ${count(slice.rows_s)} rows/s"></span>`)}</span>
          <span class="figure">${count(total)}/s</span><span class="host">${(mine[0] && mine[0].host) || ""}</span></li>`;
      })}</ul>`;
    })}
  </${Card}>`;
}

function Epochs({ epochs, now_s }) {
  if (!epochs.length) return null;
  const shown = epochs.slice(-8);
  const names = [...new Set(shown.flatMap((one) => one.parts.map((part) => part.name)))];
  const most = Math.max(...shown.map((one) => one.seconds + one.wait_s));
  const width = (value) => ({ width: `${(100 * value) / most}%` });
  return html`<${Card} title="Epochs" id="epochs" note="where the time of the mean epoch goes">
    <ul class="legend">${names.map((name, index) => html`<li><span class="swatch part-${index % 6}"></span>${name}</li>`)}<li><span class="swatch rest"></span>plan and commit</li><li><span class="swatch wait"></span>wait</li></ul>
    <ol class="falls">${shown.map((one) => {
      const used = one.parts.reduce((sum, part) => sum + part.seconds, 0);
      const rest = Math.max(0, one.seconds - used);
      const words = [...one.parts.map((part) => `${part.name} ${seconds(part.seconds)}`), `plan and commit ${seconds(rest)}`, `wait ${seconds(one.wait_s)}`].join(", ");
      return html`<li><${Time} at_s=${one.at_s} now_s=${now_s} /><span class="fall" role="img" aria-label=${words} title=${words}>
        ${one.parts.map((part) => html`<span class="part-${names.indexOf(part.name) % 6}" style=${width(part.seconds)}></span>`)}<span class="rest" style=${width(rest)}></span><span class="wait" style=${width(one.wait_s)}></span></span>
        <span class="figure">${seconds(one.seconds)}</span></li>`;
    })}</ol>
  </${Card}>`;
}

function Failures({ failures, now_s }) {
  if (!failures.length) return null;
  return html`<${Card} title="Failures" id="failures" note="since the service started; spark.log of the home has the stack traces">
    <ol class="events">${failures.slice(-10).reverse().map((one) => html`<li class="bad"><${Time} at_s=${one.at_s} now_s=${now_s} /><div><p><b>${one.state}</b></p><p class="cause">${one.reason || "no reason was given"}</p></div></li>`)}</ol>
  </${Card}>`;
}

// -- the story

function StoryCard({ story, now_s }) {
  const entries = story.entries.slice(0, 60);
  return html`<${Card} title="Story" id="story" note="what was measured, decided and done, newest first">
    ${entries.length ? html`<ol class="story">${entries.map((one) => html`<${Entry} key="${one.kind}-${one.at_s}-${one.text}" entry=${one} now_s=${now_s} />`)}</ol>` : html`<${Empty}>Nothing happened to this job in this range.</${Empty}>`}
  </${Card}>`;
}

function Entry({ entry, now_s }) {
  if (entry.kind === "action") return html`<${ActionEntry} entry=${entry} now_s=${now_s} />`;
  const text = entry.kind === "change" ? html`<b>${entry.who}</b> ${entry.text} <span class="via">${entry.facts.via}</span>` : sentence(entry.text);
  return html`<li class=${entry.kind}><${Time} at_s=${entry.at_s} now_s=${now_s} /><div><p>${text}</p></div></li>`;
}

const sentence = (text) => (text ? text[0].toUpperCase() + text.slice(1) : "");

function ActionEntry({ entry, now_s }) {
  const { action, diagnosis } = entry;
  return html`<li class="action ${action.applied === false ? "bad" : ""}"><${Time} at_s=${entry.at_s} now_s=${now_s} />
    <details><summary><span>${action.what || action.kind}</span><span class="effect">${effectText(action)}</span></summary>
      <dl class="chain">
        ${diagnosis.because.length ? html`<dt>Symptom</dt><dd><ul>${symptoms(diagnosis).map((one) => html`<li>${one.text}${one.because.length ? html`<small>${one.because.map((cause) => cause.text).join("; ")}</small>` : null}</li>`)}</ul></dd>` : null}
        <dt>Diagnosis</dt><dd>${diagnosis.text}${entry.facts.diagnosis ? html`<small>${entry.facts.diagnosis}${entry.facts.operator ? ` of ${entry.facts.operator}` : ""}</small>` : null}</dd>
        <dt>Remedy</dt><dd>${action.what || action.kind}<small>${[entry.remedy || action.kind, entry.pace_s === null ? "" : pace(entry.pace_s)].filter(Boolean).join(" · ")}</small></dd>
        <dt>Effect</dt><dd>${sentence(effectText(action))}${action.effect && action.effect.utility_after !== null ? html`<small>utility of the job ${points(action.effect.utility_before)} → ${points(action.effect.utility_after)}</small>` : null}</dd>
      </dl>
    </details></li>`;
}

function symptoms(reason) {
  const own = reason.because.filter((one) => "symptom" in one.facts);
  return own.length ? own : reason.because;
}
