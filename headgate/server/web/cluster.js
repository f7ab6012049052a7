// The cluster: utility over time with the actions of the loop, all jobs, tenants, hosts, bill, and who changed what.
import { html, useMemo, Card, Empty, Meter, Ranges, Stat, Time, Verdict, UNKNOWN, ago, count, money, newest, pace, percent, plural, points, seconds, share, verdictOf, clock } from "./ui.js";
import { Legend, LineChart, Sparkline } from "./charts.js";
import { Tenants } from "./tenants.js";

const BROKEN = new Set(["missed", "failed", "retrying", "stale"]);
const RANK = { failed: 0, retrying: 1, missed: 2, stale: 3, measuring: 4, starting: 5, met: 6, paused: 7 };

export function effectText(action) {
  if (action.applied === false) return `refused${action.detail ? `: ${action.detail}` : ""}`;
  const effect = action.effect;
  if (!effect) return action.applied === null ? "not confirmed yet" : "effect not measured yet";
  const total = effect.score_before !== null && effect.score_after !== null ? `total ${points(effect.score_before)} → ${points(effect.score_after)}` : "";
  const own = !total && effect.utility_before !== null && effect.utility_after !== null ? `utility ${points(effect.utility_before)} → ${points(effect.utility_after)}` : "";
  return [total || own, effect.verdict].filter(Boolean).join(", ");
}

export const actionMark = (action) => ({
  at_s: action.at_s,
  bad: action.applied === false,
  label: `${clock(action.at_s)} ${action.job || action.host || "cluster"}: ${action.what || action.kind}. ${action.cause}. Effect: ${effectText(action)}`,
  body: html`<div><p class="when">${clock(action.at_s)} · ${action.kind}</p><p><b>${action.job || action.host || "cluster"}</b> ${action.what}</p><p>${action.cause}</p><p class="effect">${effectText(action)}</p></div>`,
});

export function ClusterPage({ cluster, jobs, range, choose, params, setParam, tenant }) {
  const verdicts = jobs.jobs.map((job) => verdictOf(job.status));
  const wanted = verdicts.filter((one) => one !== "paused").length;
  const met = verdicts.filter((one) => one === "met").length;
  const bad = verdicts.filter((one) => BROKEN.has(one)).length;
  const lines = [
    { label: "Utility", values: cluster.utility.score, className: "main" },
    { label: "Maximum", values: cluster.utility.max_score, className: "goal" },
  ];
  const marks = useMemo(() => cluster.actions.map(actionMark), [cluster]);
  const actions = cluster.actions.length + cluster.more_actions;
  return html`<h1 class="sr">Cluster</h1>
  ${cluster.problem ? html`<p class="banner bad" role="alert"><${Shape} />${cluster.problem}</p>` : null}
  <dl class="stats">
    <${Stat} label="Utility" value=${points(cluster.score)} unit="of ${points(cluster.max_score)}" note=${cluster.satisfaction === null ? "not known yet" : `${percent(cluster.satisfaction)} of the maximum`} />
    <${Stat} label="Intents met" value=${met} unit="of ${wanted}" note=${wanted > met + bad ? `${wanted - met - bad} not judged yet` : wanted === met ? "all jobs" : "all jobs are judged"} />
    <${Stat} label="Need attention" value=${bad} unit=${bad === 1 ? "job" : "jobs"} tone=${bad ? "bad" : "good"} note=${bad ? "missed, failed or stale" : "none"} />
    <${Stat} label="Control loop" value=${cluster.phase === "not converged" ? "searching" : cluster.phase} note=${cluster.at_s === null ? "no round yet" : `round ${ago(cluster.at_s, cluster.now_s)}${cluster.policy === "headgate" ? "" : ` · policy ${cluster.policy}`}`} />
    ${cluster.bill ? html`<${Stat} label="Spending" value=${money(cluster.bill.spending_per_hour)} unit="per hour" note="${money(cluster.bill.cost)} so far" />` : null}
  </dl>
  <${Card} title="Utility" id="utility" className="wide" note=${cluster.more_actions ? newest(cluster.actions.length, actions, "action") : ""} aside=${html`<${Legend} lines=${lines} /><${Ranges} value=${range} choose=${choose} />`}>
    <${LineChart} times=${cluster.utility.at_s} lines=${lines} from_s=${cluster.now_s - range} to_s=${cluster.now_s} show=${points} marks=${marks} area=${true}
      most=${Math.max(...cluster.utility.max_score, 1) * 1.08} label="Total utility over time against its maximum, with the actions of the control loop"
      summary="Utility ${points(cluster.score)} of ${points(cluster.max_score)} now; ${plural(actions, "action")} in this range." />
    ${cluster.decision ? html`<p class="decision"><span>Last decision</span>${cluster.decision}</p>` : null}
  </${Card}>
  <${Jobs} jobs=${jobs} params=${params} setParam=${setParam} />
  <${Tenants} tenants=${cluster.tenants} />
  <div class="columns">
    <${Actions} actions=${cluster.actions} total=${actions} now_s=${cluster.now_s} />
    <div class="stack">
      ${tenant ? null : html`<${Hosts} hosts=${cluster.hosts} />`}
      ${cluster.bill ? html`<${Bill} bill=${cluster.bill} />` : null}
      <${Changes} changes=${cluster.changes} now_s=${cluster.now_s} />
      ${cluster.advice.length ? html`<${Card} title="Advice" id="advice"><ul class="plain">${cluster.advice.map((one) => html`<li>${one}</li>`)}</ul></${Card}>` : null}
    </div>
  </div>`;
}

const Shape = () => html`<svg viewBox="0 0 12 12" aria-hidden="true"><path d="M6 1.500 11 10.500H1Z" /></svg>`;

function Jobs({ jobs, params, setParam }) {
  const tenants = [...new Set(jobs.jobs.map((job) => job.status.tenant))].sort();
  const states = [...new Set(jobs.jobs.map((job) => verdictOf(job.status)))].sort();
  const text = (params.get("find") || "").toLowerCase();
  const tenant = params.get("tenant") || "", state = params.get("state") || "", missed = params.get("missed") === "1";
  const shown = jobs.jobs
    .map((job) => ({ ...job, verdict: verdictOf(job.status) }))
    .filter((job) => (!text || job.name.toLowerCase().includes(text)) && (!tenant || job.status.tenant === tenant) && (!state || job.verdict === state) && (!missed || BROKEN.has(job.verdict)))
    .sort((one, other) => RANK[one.verdict] - RANK[other.verdict] || other.status.worth - one.status.worth || one.name.localeCompare(other.name));
  const filters = html`<form class="filters" role="search" aria-label="Filter jobs" onSubmit=${(event) => event.preventDefault()}>
    <label class="sr" for="find">Find a job</label>
    <input id="find" type="search" placeholder="Find a job" value=${params.get("find") || ""} onInput=${(event) => setParam("find", event.target.value)} />
    <label class="sr" for="tenant">Tenant</label>
    <select id="tenant" value=${tenant} onChange=${(event) => setParam("tenant", event.target.value)}><option value="">All tenants</option>${tenants.map((one) => html`<option value=${one}>${one}</option>`)}</select>
    <label class="sr" for="state">State</label>
    <select id="state" value=${state} onChange=${(event) => setParam("state", event.target.value)}><option value="">All states</option>${states.map((one) => html`<option value=${one}>${one}</option>`)}</select>
    <label class="check"><input type="checkbox" checked=${missed} onChange=${(event) => setParam("missed", event.target.checked ? "1" : "")} />Needs attention</label>
  </form>`;
  return html`<${Card} title="Jobs" id="jobs" className="wide flush" note=${shown.length === jobs.jobs.length ? plural(shown.length, "job") : `${shown.length} of ${plural(jobs.jobs.length, "job")}`} aside=${filters}>
    ${shown.length ? html`<table class="jobs wrap">
      <thead><tr><th scope="col">Job</th><th scope="col">State</th><th scope="col" class="number">Latency</th><th scope="col">Latency and intent</th><th scope="col" class="number">Juice</th><th scope="col" class="number">Utility</th><th scope="col" class="number">Lanes</th><th scope="col" class="number">Pace</th></tr></thead>
      <tbody>${shown.map((job) => html`<${Row} key=${job.name} job=${job} />`)}</tbody>
    </table>` : html`<${Empty}>${jobs.jobs.length ? "No job fits these filters." : "No job runs yet. Submit one with headgate submit FILE."}</${Empty}>`}
  </${Card}>`;
}

function Row({ job }) {
  const { status, series, verdict } = job;
  const tone = verdict === "met" ? "good" : BROKEN.has(verdict) ? "bad" : "";
  const late = status.latency_s !== null && status.latency_intent_s !== null && status.latency_s > status.latency_intent_s;
  return html`<tr>
    <th scope="row"><a href="#/jobs/${encodeURIComponent(job.name)}">${job.name}</a><span class="under">${status.tenant} · ${status.intent || "no intent"}</span></th>
    <td class="state"><${Verdict} verdict=${verdict} title=${status.reason} /></td>
    <td class="number ${late ? "late" : ""}" data-label="Latency">${seconds(status.latency_s)}</td>
    <td class="over-time">${series ? html`<${Sparkline} values=${series.latency_s} goal=${status.latency_intent_s || undefined} className=${tone} width=${132} />` : null}</td>
    <td class="number" data-label="Juice">${trend(series, "juice", status.juice_intent || 1)}<span class="value">${share(status.juice)}</span></td>
    <td class="number utility" data-label="Utility">${trend(series, "utility", status.worth)}<span class="value">${points(status.utility)}<small> / ${points(status.worth)}</small></span><${Meter} value=${status.utility} most=${status.worth} tone=${tone} label="${points(status.utility)} of ${points(status.worth)} points" /></td>
    <td class="number" data-label="Lanes">${trend(series, "lanes")}<span class="value">${job.lanes === null ? UNKNOWN : job.lanes}</span></td>
    <td class="number" data-label="Pace">${trend(series, "pace_s")}<span class="value pace">${pace(status.pace_s)}</span></td>
  </tr>`;
}

const trend = (series, name, goal) => (series ? html`<${Sparkline} values=${series[name]} goal=${goal} width=${48} />` : null);

function Actions({ actions, total, now_s }) {
  const shown = actions.slice(-8).reverse();
  return html`<${Card} title="Actions" id="actions" note=${newest(shown.length, total, "action")}>
    ${shown.length ? html`<ol class="events">${shown.map((one) => html`<li key=${one.id} class=${one.applied === false ? "bad" : ""}>
      <${Time} at_s=${one.at_s} now_s=${now_s} />
      <div><p>${one.job ? html`<a href="#/jobs/${encodeURIComponent(one.job)}">${one.job}</a>` : html`<b>${one.host || "cluster"}</b>`} ${one.what || one.kind}</p>
      <p class="cause">${one.cause}</p><p class="effect">${effectText(one)}</p></div>
    </li>`)}</ol>` : html`<${Empty}>The control loop changed nothing in this range.</${Empty}>`}
  </${Card}>`;
}

function Hosts({ hosts }) {
  return html`<${Card} title="Hosts" id="hosts" note=${plural(hosts.length, "host")} className="flush">
    ${hosts.length ? html`<table class="small"><thead><tr><th scope="col">Host</th><th scope="col" class="number">Slots</th><th scope="col" class="number">Load</th><th scope="col" class="number">Memory</th><th scope="col" class="number">Paid</th></tr></thead>
    <tbody>${hosts.map((host) => html`<tr key=${host.name}><th scope="row">${host.name}${host.lease ? html`<span class="under">${host.lease.kind} · ${host.lease.phase}</span>` : null}${host.silent_s === null ? null : html`<span class="under late">silent for ${seconds(host.silent_s)}</span>`}</th>
      <td class="number">${count(host.slots ?? host.cores)}</td>
      <td class="number ${host.load !== null && host.load > host.cores ? "late" : ""}">${host.load === null ? UNKNOWN : host.load.toFixed(1)}</td>
      <td class="number">${percent(host.memory_used)}</td><td class="number">${host.lease ? seconds(host.lease.paid_s) : UNKNOWN}</td></tr>`)}</tbody></table>` : html`<${Empty}>No host was measured yet.</${Empty}>`}
  </${Card}>`;
}

function Bill({ bill }) {
  const sorted = Object.entries(bill.cost_by_job).sort((one, other) => other[1] - one[1]);
  const jobs = sorted.slice(0, 8), others = sorted.slice(8);
  return html`<${Card} title="Bill" id="bill" note="${plural(bill.leases, "lease")}, ${plural(bill.paid_btus, "billing unit")}" className="flush">
    <table class="small"><thead><tr><th scope="col">Job</th><th scope="col" class="number">Cost</th></tr></thead>
    <tbody>${jobs.map(([name, cost]) => html`<tr key=${name}><th scope="row">${name}</th><td class="number">${money(cost)}</td></tr>`)}
    ${others.length ? html`<tr><th scope="row">${plural(others.length, "other job")}</th><td class="number">${money(others.reduce((sum, [, cost]) => sum + cost, 0))}</td></tr>` : null}
    <tr class="total"><th scope="row">All hosts<span class="under">${seconds(bill.wasted_s)} paid and not used</span></th><td class="number">${money(bill.cost)}</td></tr></tbody></table>
  </${Card}>`;
}

function Changes({ changes, now_s }) {
  const shown = changes.slice(-8).reverse();
  return html`<${Card} title="Changes by people" id="changes" note=${changes.length > shown.length ? "the newest 8; headgate audit lists all" : ""}>
    ${shown.length ? html`<ol class="events">${shown.map((one) => html`<li><${Time} at_s=${one.at_s} now_s=${now_s} /><div><p>${one.job ? html`<b>${one.job}</b> ` : null}${one.what}</p><p class="cause">${one.who}, ${one.via}${one.address ? `, from ${one.address}` : ""}</p></div></li>`)}</ol>` : html`<${Empty}>No person changed a job yet.</${Empty}>`}
  </${Card}>`;
}
