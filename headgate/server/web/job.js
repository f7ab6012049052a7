// One job: its goals and figures, its operators and lanes, its latency, its epochs, and its story.
import { html, useMemo, useState, Card, Empty, Meter, Ranges, Stat, Time, Verdict, UNKNOWN, bytes, count, newest, pace, percent, plural, points, seconds, share, verdictOf } from "./ui.js";
import { Legend, LineChart } from "./charts.js";
import { Change, Confirm } from "./dialogs.js";
import { Graph } from "./graph.js";
import { actionMark, effectText } from "./cluster.js";

export function JobPage({ job, story, epochs, range, choose, session, reload }) {
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
  const keyed = job.operators.some((one) => one.slices.length);
  const falls = html`<${Epochs} epochs=${epochs} now_s=${job.now_s} />`;
  return html`<div class="title">
    <h1>${job.name}</h1><${Verdict} verdict=${verdict} />
    <p class="note">tenant ${status.tenant} · intent ${status.intent || UNKNOWN} · worth ${points(status.worth)} · share ${status.share}${status.read_limit ? ` · at most ${count(status.read_limit)} rows per epoch` : ""}</p>
    ${session.role === "viewer" ? null : html`<div class="buttons">
      ${session.tenant ? null : html`<a class="button" href="#/what-if?job=${encodeURIComponent(job.name)}">What if?</a>`}
      <button type="button" onClick=${() => setDialog("change")}>Change …</button>
      ${runs || status.state === "starting" ? html`<button type="button" onClick=${() => setDialog("pause")}>Pause …</button>` : html`<button type="button" onClick=${() => setDialog("resume")}>Resume …</button>`}
      <button type="button" class="danger" onClick=${() => setDialog("remove")}>Remove …</button>
    </div>`}
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
    <div class="stack">
      <${Failures} failures=${job.failures} now_s=${job.now_s} />
      ${keyed ? falls : null}
      <${StoryCard} story=${story} now_s=${job.now_s} />
    </div>
    <div class="stack">
      <${Lanes} operators=${job.operators} />
      ${keyed ? null : falls}
      <${KeyedState} operators=${job.operators} />
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
  return html`<${Card} title="Latency" id="latency" className="wide" note=${job.more_actions ? newest(job.actions.length, job.actions.length + job.more_actions, "action") : ""} aside=${html`<${Legend} lines=${lines} /><${Ranges} value=${range} choose=${choose} />`}>
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

const sum = (values) => values.reduce((total, value) => total + value, 0);

function KeyedState({ operators }) {
  const shown = operators.filter((one) => one.slices.length);
  if (!shown.length) return null;
  return html`<${Card} title="Keyed state" id="keyed" note="slices of the keys by lane; the more rows a slice gets, the stronger its colour">
    ${shown.map((one) => html`<${Slices} operator=${one} /><${HotKeys} keys=${one.hot_keys} />`)}
  </${Card}>`;
}

function Slices({ operator }) {
  const slices = operator.slices.map((slice, number) => ({ ...slice, number }));
  const most = Math.max(...slices.map((slice) => slice.rows_s), 1e-9);
  const lanes = [...new Set(slices.map((slice) => slice.lane))].sort((a, b) => a - b);
  const size = slices.some((slice) => slice.bytes !== null) ? `, ${bytes(sum(slices.map((slice) => slice.bytes || 0)))}` : "";
  return html`<h3>${operator.name}<span class="tag plain">${plural(slices.length, "slice")}${size}</span></h3>
  <ul class="slices">${lanes.map((lane) => {
    const mine = slices.filter((slice) => slice.lane === lane);
    const rows = sum(mine.map((slice) => slice.rows_s)), held = mine.some((slice) => slice.bytes !== null) ? sum(mine.map((slice) => slice.bytes || 0)) : null;
    return html`<li><span class="lane">lane ${lane}</span><span class="cells" role="img" aria-label="${plural(mine.length, "slice")}, ${count(rows)} rows per second, ${bytes(held)}">
      ${mine.map((slice) => html`<span class="cell heat-${Math.min(5, Math.round((5 * slice.rows_s) / most))}" title="slice ${slice.number}: ${count(slice.rows_s)} rows/s, ${bytes(slice.bytes)}"></span>`)}</span>
      <span class="figure">${count(rows)}/s</span><span class="figure">${bytes(held)}</span><span class="host">${(mine[0] && mine[0].host) || ""}</span></li>`;
  })}</ul>
  <${HotSlices} slices=${slices} />`;
}

const HOT = 3;

function HotSlices({ slices }) {
  const mean = sum(slices.map((slice) => slice.rows_s)) / slices.length;
  const hot = slices.filter((slice) => slice.rows_s > HOT * mean && slice.rows_s > 0).sort((one, other) => other.rows_s - one.rows_s).slice(0, 3);
  return hot.map((slice) => html`<p class="hot"><b>Slice ${slice.number} is hot:</b> ${count(slice.rows_s)} rows/s, ${(slice.rows_s / mean).toFixed(1)} times the mean, in lane ${slice.lane}.</p>`);
}

function HotKeys({ keys }) {
  if (!keys.length) return null;
  const most = keys[0].share;
  return html`<h3>Fullest keys<span class="tag plain">share of the rows that a key had at least</span></h3>
  <ol class="hot-keys">${keys.slice(0, 5).map((one) => html`<li><span class="key-text" title=${one.key}>${one.key}</span><${Meter} value=${one.share} most=${most} tone="plain" label="${one.key}: ${percent(one.share)} of the rows" /><span class="figure">${(100 * one.share).toFixed(1)} %</span></li>`)}</ol>`;
}

const PARTS = ["read", "log", "plan", "failed", "sink", "state", "count", "commit", "wait"];
const partName = (span) => (span.operator ? `${span.part} ${span.operator}` : span.part);

// Each epoch is a row of its parts, one after another, all rows on one scale.
function Epochs({ epochs, now_s }) {
  if (!epochs.length) return null;
  const shown = epochs.slice(-10).reverse();
  const spans = shown.flatMap((one) => one.spans);
  const names = PARTS.flatMap((part) => [...new Set(spans.filter((span) => span.part === part).map(partName))]);
  const sinks = names.filter((name) => name.startsWith("sink"));
  const className = (name) => (name.startsWith("sink") ? `part-sink-${sinks.indexOf(name) % 4}` : `part-${name.split(" ")[0]}`);
  const took = (one) => sum(one.spans.map((span) => span.took_s));
  const most = Math.max(...shown.map(took), 1e-9);
  return html`<${Card} title="Epochs" id="epochs" note="the last epochs, part by part; the part of a sink holds the Spark stages that the sink needs">
    <ul class="legend">${names.map((name) => html`<li><span class="swatch ${className(name)}"></span>${name}</li>`)}</ul>
    <ol class="falls">${shown.map((one) => {
      const words = one.spans.map((span) => `${partName(span)} ${seconds(span.took_s)}`).join(", ");
      return html`<li key=${one.number}><${Time} at_s=${one.started_s} now_s=${now_s} /><span class="fall" role="img" aria-label="epoch ${one.number}: ${words}" title="epoch ${one.number}: ${words}">
        ${one.spans.map((span) => html`<span class=${className(partName(span))} style=${{ width: `${(100 * span.took_s) / most}%` }}></span>`)}</span>
        <span class="figure">${count(one.rows)} rows</span><span class="figure">${seconds(took(one))}</span></li>`;
    })}</ol>
  </${Card}>`;
}

function Failures({ failures, now_s }) {
  if (!failures.length) return null;
  return html`<${Card} title="Failures" id="failures" note="since the service started">
    <ol class="events">${failures.slice().reverse().map((one) => html`<li key=${one.at_s} class="bad"><${Time} at_s=${one.at_s} now_s=${now_s} /><div><p><b>${one.state}</b></p><p class="cause">${one.reason || "no reason was given"}</p>
      ${one.trace ? html`<details class="trace"><summary>Stack trace</summary><pre tabindex="0" aria-label="Stack trace">${one.trace}</pre></details>` : null}</div></li>`)}</ol>
  </${Card}>`;
}

// -- the story

function StoryCard({ story, now_s }) {
  const entries = story.entries.slice(0, 60);
  return html`<${Card} title="Story" id="story" note=${`what was measured, decided and done, newest first${story.entries.length > entries.length ? `: the newest ${entries.length} entries` : ""}`}>
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
        <dt>Remedy</dt><dd>${action.what || action.kind}<small>${[entry.remedy || (action.what ? action.kind : ""), lanesOf(entry), entry.pace_s === null ? "" : pace(entry.pace_s)].filter(Boolean).join(" · ")}</small></dd>
        <dt>Effect</dt><dd>${sentence(effectText(action))}${action.effect && action.effect.utility_after !== null ? html`<small>utility of the job ${points(action.effect.utility_before)} → ${points(action.effect.utility_after)}</small>` : null}</dd>
      </dl>
    </details></li>`;
}

// A change that has no short form is told by what the job has after it.
const lanesOf = (entry) => (entry.action.what || !entry.lanes ? "" : Object.entries(entry.lanes).map(([name, lanes]) => `${name} ${plural(lanes, "lane")}`).join(", "));

function symptoms(reason) {
  const own = reason.because.filter((one) => "symptom" in one.facts);
  return own.length ? own : reason.because;
}
