// Changes by a person: a dialog that says what will happen, under whose name, and what the service answered.
import { html, useEffect, useRef, useState } from "./ui.js";
import { change, jobPath } from "./api.js";

function Dialog({ title, close, children }) {
  const ref = useRef(null);
  useEffect(() => { ref.current.showModal(); }, []);
  return html`<dialog ref=${ref} aria-labelledby="dialog-title" onClose=${close} onClick=${(event) => event.target === ref.current && ref.current.close()}>
    <div class="inner"><h2 id="dialog-title">${title}</h2>${children(() => ref.current.close())}</div>
  </dialog>`;
}

const CONFIRMED = {
  pause: { verb: "Pause", text: "The job stops after the epoch in flight. Its checkpoint and state stay, and it stays paused over restarts.", send: (name) => change("POST", `${jobPath(name)}/pause`) },
  resume: { verb: "Resume", text: "The job goes on from its checkpoint.", send: (name) => change("POST", `${jobPath(name)}/resume`) },
  remove: { verb: "Remove", text: "The job stops after the epoch in flight and leaves the list. headgate restore brings it back for 24 h, unless the settings say otherwise.", danger: true, send: (name) => change("DELETE", jobPath(name)) },
};

export function Confirm({ kind, name, session, close, done }) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState("");
  const [typed, setTyped] = useState("");
  const { verb, text, danger, send } = CONFIRMED[kind];
  return html`<${Dialog} title="${verb} ${name}?" close=${close}>${(shut) => html`<form onSubmit=${async (event) => {
    event.preventDefault();
    setBusy(true);
    try { await send(name); shut(); done(kind); } catch (found) { setError(found.message); setBusy(false); }
  }}>
    <p>${text}</p>
    ${danger ? html`<label for="typed">Type the name of the job to confirm</label><input id="typed" autocomplete="off" value=${typed} onInput=${(event) => setTyped(event.target.value)} />` : null}
    <p class="by">The service records this change under the name <b>${session.who}</b>.</p>
    <p class="refused" role="alert">${error}</p>
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button type="submit" class=${danger ? "danger" : "primary"} disabled=${busy || (danger && typed !== name)}>${verb}</button></div>
  </form>`}</${Dialog}>`;
}

const FIELDS = [
  ["latency", "Latency goal", "such as 2s or 250ms; empty: none"],
  ["percentile", "Percentile", "such as 99; empty: the mean"],
  ["juice", "Juice goal", "share of the input, such as 0.95; empty: none"],
  ["worth", "Worth", "points for a met intent"],
];

const text = (value) => (value === null || value === undefined ? "" : String(value));
const value = (typed) => (typed === "" ? null : Number.isNaN(Number(typed)) ? typed : Number(typed));

export function Change({ job, session, close, done }) {
  const before = {
    latency: job.intent.latency_s === null || job.intent.latency_s === undefined ? "" : `${job.intent.latency_s}s`,
    percentile: text(job.intent.percentile), juice: text(job.intent.juice), worth: text(job.intent.worth),
    share: text(job.status.share), read_limit: text(job.status.read_limit),
  };
  const [now, setNow] = useState(before);
  const [error, setError] = useState("");
  const [busy, setBusy] = useState(false);
  const changed = Object.keys(before).filter((name) => now[name].trim() !== before[name]);
  const table = () => {
    const found = {};
    for (const name of changed) {
      const given = value(now[name].trim());
      if (name === "share" || name === "read_limit") found[name] = given;
      else (found.intent = found.intent || {})[name] = given;
    }
    return found;
  };
  const field = ([name, label, hint]) => html`<div class="field"><label for="field-${name}">${label}</label>
    <input id="field-${name}" autocomplete="off" value=${now[name]} aria-describedby="hint-${name}" onInput=${(event) => setNow({ ...now, [name]: event.target.value })} /><small id="hint-${name}">${hint}</small></div>`;
  return html`<${Dialog} title="Change ${job.name}" close=${close}>${(shut) => html`<form onSubmit=${async (event) => {
    event.preventDefault();
    setBusy(true);
    try { await change("PATCH", jobPath(job.name), table()); shut(); done("change"); } catch (found) { setError(found.message); setBusy(false); }
  }}>
    <fieldset><legend>Intent</legend>${FIELDS.map(field)}</fieldset>
    <fieldset><legend>Resources</legend>${field(["share", "Share", "weight among the jobs, 1 to 10"])}${field(["read_limit", "Read limit", "rows per epoch; empty: as the settings say"])}</fieldset>
    <p class="by">${changed.length ? html`Changes ${changed.map((name) => name.replace("_", " ")).join(", ")}. The service records this under the name <b>${session.who}</b>.` : "Nothing is changed yet."}</p>
    <p class="refused" role="alert">${error}</p>
    <div class="buttons"><button type="button" onClick=${shut}>Cancel</button><button type="submit" class="primary" disabled=${busy || !changed.length}>Apply</button></div>
  </form>`}</${Dialog}>`;
}
