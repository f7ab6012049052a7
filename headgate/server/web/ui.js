// What all pages share: the template tag, hooks, numbers and times as people read them, small components.
import { h, render, Fragment } from "./vendor/preact.mjs";
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "./vendor/hooks.mjs";
import htm from "./vendor/htm.mjs";

export const html = htm.bind(h);
export { render, Fragment, useEffect, useLayoutEffect, useMemo, useRef, useState };

export const UNKNOWN = "–";

// -- numbers and times

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);
const grouped = (value, digits) => value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });

export function seconds(value) {
  if (!known(value)) return UNKNOWN;
  if (value === 0) return "0 s";
  if (value < 0.0995) return `${grouped(1000 * value, 0)} ms`;
  if (value < 9.95) return `${grouped(value, value < 0.995 ? 2 : 1)} s`;
  if (value < 99.5) return `${grouped(value, 0)} s`;
  if (value < 5970) return `${grouped(value / 60, 0)} min`;
  if (value < 172800) return `${grouped(value / 3600, value < 36000 ? 1 : 0)} h`;
  return `${grouped(value / 86400, 0)} d`;
}

export function count(value) {
  if (!known(value)) return UNKNOWN;
  if (value >= 999500) return `${grouped(value / 1e6, value % 1e6 ? 1 : 0)} M`;
  if (value >= 99950) return `${grouped(value / 1e3, 0)} k`;
  return grouped(value, value !== 0 && value < 10 && value % 1 ? 1 : 0);
}

export function bytes(value) {
  if (!known(value)) return UNKNOWN;
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(units.length - 1, value < 1 ? 0 : Math.floor(Math.log10(value) / 3));
  const shown = value / 1000 ** power;
  return `${grouped(shown, power && shown < 9.95 ? 1 : 0)} ${units[power]}`;
}

export const points = (value) => (known(value) ? grouped(value, value % 1 && value < 100 ? 1 : 0) : UNKNOWN);
export const share = (value) => (known(value) ? grouped(value, 2) : UNKNOWN);
export const percent = (value) => (known(value) ? `${grouped(100 * value, 0)} %` : UNKNOWN);
export const money = (value) => (known(value) ? grouped(value, 2) : UNKNOWN);
export const pace = (value) => (!known(value) ? UNKNOWN : value === 0 ? "back to back" : `every ${seconds(value)}`);
export const newest = (shown, total, word) => (shown < total ? `newest ${shown} of ${plural(total, word)}` : plural(total, word));
export const plural = (number, word) => `${grouped(number, 0)} ${word}${number === 1 ? "" : "s"}`;

const two = (value) => String(value).padStart(2, "0");
const DAYS = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];

export function clock(at_s, withSeconds = true) {
  const at = new Date(1000 * at_s);
  const minutes = `${two(at.getHours())}:${two(at.getMinutes())}`;
  return withSeconds ? `${minutes}:${two(at.getSeconds())}` : minutes;
}

export function moment(at_s, now_s) {
  const at = new Date(1000 * at_s);
  const sameDay = new Date(1000 * now_s).toDateString() === at.toDateString();
  return sameDay ? clock(at_s) : `${DAYS[at.getDay()]} ${clock(at_s, false)}`;
}

export const ago = (at_s, now_s) => (known(at_s) ? `${seconds(Math.max(0, Math.round(now_s - at_s)))} ago` : UNKNOWN);
export const iso = (at_s) => new Date(1000 * at_s).toISOString();

// -- verdicts: always a shape and a word, never a colour alone

export function verdictOf(status) {
  if (status.state === "failed") return "failed";
  if (status.state === "retrying") return "retrying";
  if (status.state === "paused") return "paused";
  if (status.state === "starting") return "starting";
  if (status.stale) return "stale";
  if (status.met === true) return "met";
  if (status.met === false) return "missed";
  return "measuring";
}

const SHAPES = {
  met: "M2 6.5 5 9.500 10 3",
  missed: "M6 1.500 11 10.500H1Z",
  failed: "M2.500 2.500l7 7m0-7l-7 7",
  retrying: "M10 6a4 4 0 1 1-1.200-2.800M10 1v2.500H7.500",
  paused: "M4 2.500v7m4-7v7",
  stale: "M6 1.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 1 0 0-9M6 3.500V6l2 1.500",
  starting: "M6 1.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 1 0 0-9",
  measuring: "M6 1.500a4.500 4.500 0 1 0 0 9 4.500 4.500 0 1 0 0-9",
};

export const Verdict = ({ verdict, title }) => html`<span class="verdict ${verdict}" title=${title || null}>
  <svg viewBox="0 0 12 12" aria-hidden="true"><path d=${SHAPES[verdict]} /></svg>${verdict}</span>`;

export const Time = ({ at_s, now_s }) => html`<time datetime=${iso(at_s)} title=${new Date(1000 * at_s).toLocaleString()}>${moment(at_s, now_s)}</time>`;

export const Card = ({ title, id, aside, note, children, className }) => html`<section class="card ${className || ""}" aria-labelledby=${id}>
  <header><h2 id=${id}>${title}</h2>${note ? html`<p class="note">${note}</p>` : null}${aside || null}</header>
  ${children}
</section>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Stat = ({ label, value, unit, note, tone }) => html`<div class="stat ${tone || ""}">
  <dt>${label}</dt><dd><strong>${value}</strong>${unit ? html` <span class="unit">${unit}</span>` : null}${note ? html`<span class="under">${note}</span>` : null}</dd>
</div>`;

export const Meter = ({ value, most, label, tone }) => {
  const part = known(value) && most > 0 ? Math.min(1, value / most) : 0;
  return html`<span class="meter ${tone || ""}" role="img" aria-label=${label}><span style=${{ width: `${100 * part}%` }}></span></span>`;
};

export const RANGES = [[900, "15 min"], [3600, "1 h"], [21600, "6 h"], [86400, "24 h"], [604800, "7 d"]];

export const Ranges = ({ value, choose }) => html`<div class="segments" role="group" aria-label="Time range">
  ${RANGES.map(([range, label]) => html`<button type="button" aria-pressed=${value === range} onClick=${() => choose(range)}>${label}</button>`)}
</div>`;
