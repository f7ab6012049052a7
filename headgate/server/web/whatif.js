// What if: a question about the running jobs, and the service's prediction as a chart and a table.
import { html, useRef, useState, Card, Empty, Meter, Stat, Verdict, UNKNOWN, count, percent, plural, points, seconds, share } from "./ui.js";
import { Legend, LineChart } from "./charts.js";
import { change } from "./api.js";

const ALL = "all";
const TIMES = [["300", "5 min"], ["900", "15 min"], ["1800", "30 min"]];
const NOTHING = { job: ALL, load: "", latency: "", worth: "", hosts: "", until: "", hold: false, after: "300" };
const PRESETS = [
  ["Twice the load", { load: "2" }],
  ["How many hosts for twice the load?", { load: "2", until: "hosts" }],
  ["One host less", (cluster) => ({ hosts: String(Math.max(1, cluster.hosts.length - 1)) })],
];

// The body of the request; empty fields change nothing.
function questionOf(form) {
  const found = { hold: form.hold, after_s: Number(form.after) };
  if (form.load) found.loads = { [form.job]: Number(form.load) };
  const intent = {};
  if (form.job !== ALL && form.latency) intent.latency = Number.isNaN(Number(form.latency)) ? form.latency : Number(form.latency);
  if (form.job !== ALL && form.worth) intent.worth = Number(form.worth);
  if (Object.keys(intent).length) found.intents = { [form.job]: intent };
  if (form.until) found.until_met = form.until;
  else if (form.hosts) found.hosts = Number(form.hosts);
  return found;
}

const isEmpty = (form) => !form.load && !form.hosts && !form.until && (form.job === ALL || (!form.latency && !form.worth));

export function WhatIfPage({ cluster, jobs, params }) {
  const names = jobs.jobs.map((job) => job.name).sort();
  const asked = params.get("job");
  const [form, setForm] = useState({ ...NOTHING, job: names.includes(asked) ? asked : ALL });
  const [answer, setAnswer] = useState(null);
  const [state, setState] = useState({ busy: false, error: "" });
  const result = useRef(null);
  const set = (name) => (event) => setForm({ ...form, [name]: event.target.type === "checkbox" ? event.target.checked : event.target.value.trim() });
  const submit = async (event) => {
    event.preventDefault();
    setState({ busy: true, error: "" });
    try {
      const found = await change("POST", "/what-if", questionOf(form));
      setAnswer({ ...found, form, at_s: cluster.now_s });
      setState({ busy: false, error: "" });
      if (result.current) result.current.focus();
    } catch (error) { setState({ busy: false, error: error.message }); }
  };
  const preset = (changes) => setForm({ ...NOTHING, job: form.job, after: form.after, ...(typeof changes === "function" ? changes(cluster) : changes) });
  const field = (name, label, hint, extra = {}) => html`<div class="field"><label for="what-${name}">${label}</label>
    <input id="what-${name}" autocomplete="off" value=${form[name]} onInput=${set(name)} aria-describedby="what-${name}-hint" ...${extra} /><small id="what-${name}-hint">${hint}</small></div>`;
  const select = (name, label, hint, options, extra = {}) => html`<div class="field"><label for="what-${name}">${label}</label>
    <select id="what-${name}" value=${form[name]} onChange=${set(name)} aria-describedby="what-${name}-hint" ...${extra}>${options.map(([value, text]) => html`<option value=${value}>${text}</option>`)}</select><small id="what-${name}-hint">${hint}</small></div>`;
  return html`<div class="title"><h1>What if?</h1><p class="note">The simulator repeats the running jobs from their newest measurements, with your changes. Nothing changes in the cluster.</p></div>
  <${Card} title="Question" id="question" aside=${html`<div class="buttons presets">${PRESETS.map(([label, changes]) => html`<button type="button" onClick=${() => preset(changes)}>${label}</button>`)}</div>`}>
    <form class="question" onSubmit=${submit}>
      <fieldset><legend>Jobs</legend>
        ${select("job", "Job", "whose load or intent changes", [[ALL, "All jobs"], ...names.map((name) => [name, name])])}
        ${field("load", "Times the input", "2 is twice the rows per second", { inputmode: "decimal" })}
        ${field("latency", "Latency goal", form.job === ALL ? "choose one job first" : "such as 2s or 250ms", { disabled: form.job === ALL })}
        ${field("worth", "Worth", form.job === ALL ? "choose one job first" : "points for a met intent", { disabled: form.job === ALL, inputmode: "decimal" })}
      </fieldset>
      <fieldset><legend>Cluster</legend>
        ${field("hosts", "Hosts", form.until ? "the search finds the number" : `now ${cluster.hosts.length}`, { disabled: Boolean(form.until), inputmode: "numeric" })}
        ${select("until", "Search", "the least that meets all intents", [["", "no search"], ["hosts", "least hosts"], ["slots", "least slots"]])}
        ${select("after", "Simulated time", "how long the change has lasted", TIMES)}
        <label class="check"><input type="checkbox" checked=${form.hold} onChange=${set("hold")} />Keep lanes and pace as they are</label>
      </fieldset>
      <div class="buttons"><button type="submit" class="primary" disabled=${state.busy || isEmpty(form)}>${state.busy ? "Predicting …" : "Predict"}</button>
        <span class="note" role="status">${state.busy ? "A prediction takes some seconds; a search takes longer." : ""}</span></div>
      <p class="refused" role="alert">${state.error}</p>
    </form>
  </${Card}>
  <div ref=${result} tabindex="-1" class="result">${answer ? html`<${Result} answer=${answer} now=${cluster} />` : html`<${Card} title="Prediction" id="prediction"><${Empty}>Choose a change, then Predict.</${Empty}></${Card}>`}</div>`;
}

function Result({ answer, now }) {
  const { then, form } = answer;
  const met = (outlook) => Object.values(outlook.jobs).filter((one) => one.met).length;
  const total = Object.keys(then.jobs).length;
  const gain = then.satisfaction - answer.now.satisfaction;
  return html`<dl class="stats">
    <${Stat} label="Utility predicted" value=${percent(then.satisfaction)} note="${percent(answer.now.satisfaction)} measured now" tone=${gain < -0.02 ? "bad" : "good"} />
    <${Stat} label="Intents met" value=${met(then)} unit="of ${total}" note="${met(answer.now)} now" tone=${met(then) < met(answer.now) ? "bad" : ""} />
    <${Stat} label="Hosts" value=${then.hosts} unit=${then.hosts === 1 ? "host" : "hosts"} note="${plural(then.slots, "slot")}; ${plural(answer.now.hosts, "host")} now" />
    ${form.until ? html`<${Stat} label="Least that meets all" value=${answer.enough === null ? "none" : answer.enough} unit=${answer.enough === null ? "" : form.until} note="${plural(answer.tried.length, "size")} tried" tone=${answer.enough === null ? "bad" : "good"} />` : null}
    <${Stat} label="Model without change" value=${percent(answer.modelled_now)} note="compare it with ${percent(answer.now.satisfaction)} measured" />
  </dl>
  ${answer.notes.length ? html`<ul class="banner warn notes">${answer.notes.map((one) => html`<li>${one}</li>`)}</ul>` : null}
  <${Course} answer=${answer} />
  ${answer.tried.length ? html`<${Tried} answer=${answer} />` : null}
  <${Jobs} answer=${answer} />`;
}

function Course({ answer }) {
  const { then, form } = answer;
  const after_s = Number(form.after);
  const times = then.course.map((_, index) => answer.at_s + (after_s * (index + 1)) / then.course.length);
  const lines = [
    { label: "Predicted", values: then.course, className: "main" },
    { label: "Measured now", values: times.map(() => answer.now.satisfaction), className: "goal" },
  ];
  return html`<${Card} title="Utility after the change" id="prediction" note="as if the change were made now" aside=${html`<${Legend} lines=${lines} />`}>
    <${LineChart} times=${times} lines=${lines} from_s=${answer.at_s} to_s=${answer.at_s + after_s} show=${percent} most=${1.05} area=${true} height=${200}
      label="Predicted utility over time as a share of the maximum, against what is measured now" summary="Utility is ${percent(answer.now.satisfaction)} now and ${percent(then.satisfaction)} ${seconds(after_s)} after the change." />
  </${Card}>`;
}

function Tried({ answer }) {
  return html`<${Card} title="Sizes tried" id="tried" note=${answer.enough === null ? `even ${plural(answer.tried[answer.tried.length - 1].size, answer.form.until.slice(0, -1))} do not meet all intents in this time: a longer simulated time shows whether the jobs recover` : ""}>
    <ul class="bars sizes">${answer.tried.map((one) => html`<li><span class="lane">${plural(one.size, answer.form.until.slice(0, -1))}</span>
      <${Meter} value=${one.satisfaction} most=${1} tone=${one.met ? "good" : "bad"} label="${percent(one.satisfaction)} of all utility" /><span class="figure">${percent(one.satisfaction)}</span><${Verdict} verdict=${one.met ? "met" : "missed"} /></li>`)}</ul>
  </${Card}>`;
}

const verdict = (one) => (one.met === null ? "measuring" : one.met ? "met" : "missed");
const both = (before, after) => (before === after || before === UNKNOWN ? after : html`<span class="before">${before} → </span>${after}`);
const lost = (now, then) => (then.utility || 0) - ((now && now.utility) || 0);

function Jobs({ answer }) {
  const rows = Object.entries(answer.then.jobs).map(([name, then]) => ({ name, then, now: answer.now.jobs[name] || null }))
    .sort((one, other) => lost(one.now, one.then) - lost(other.now, other.then) || one.name.localeCompare(other.name));
  const text = (one, show) => (one ? show(one) : UNKNOWN);
  return html`<${Card} title="Jobs" id="outlook" className="flush" note="measured now → predicted; largest loss first">
    <table class="jobs outlook wrap"><thead><tr><th scope="col">Job</th><th scope="col">Predicted</th><th scope="col" class="number">Latency</th><th scope="col" class="number">Juice</th><th scope="col" class="number">Utility</th><th scope="col" class="number">Lanes</th></tr></thead>
    <tbody>${rows.map(({ name, now, then }) => html`<tr key=${name}>
      <th scope="row"><a href="#/jobs/${encodeURIComponent(name)}">${name}</a><span class="under">${then.intent}</span></th>
      <td class="state"><${Verdict} verdict=${verdict(then)} /></td>
      <td class="number" data-label="Latency">${both(text(now, (one) => seconds(one.latency_s)), seconds(then.latency_s))}</td>
      <td class="number" data-label="Juice">${both(text(now, (one) => share(one.juice)), share(then.juice))}</td>
      <td class="number utility" data-label="Utility"><span class="value">${both(text(now, (one) => points(one.utility)), points(then.utility))}<small> / ${points(then.worth)}</small></span><${Meter} value=${then.utility} most=${then.worth} tone=${then.met ? "good" : "bad"} label="${points(then.utility)} of ${points(then.worth)} points" /></td>
      <td class="number" data-label="Lanes">${both(text(now, (one) => count(one.lanes)), count(then.lanes))}</td></tr>`)}</tbody></table>
  </${Card}>`;
}
