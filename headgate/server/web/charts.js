// Charts as SVG: lines over time with an optional goal, marks for actions, sparklines. No library: marks must be reachable by keyboard.
import { html, useLayoutEffect, useRef, useState, clock, moment } from "./ui.js";

const DAY_S = 86400;

export function useWidth(initial = 600) {
  const ref = useRef(null);
  const [width, setWidth] = useState(initial);
  useLayoutEffect(() => {
    const measure = () => ref.current && setWidth(Math.max(200, Math.floor(ref.current.clientWidth)));
    measure();
    const observer = new ResizeObserver(measure);
    observer.observe(ref.current);
    return () => observer.disconnect();
  }, []);
  return [ref, width];
}

// A line that is broken where nothing is known, or where the service did not run.
export function path(times, values, x, y, gap_s) {
  let text = "", open = false, last = null;
  for (let i = 0; i < times.length; i += 1) {
    const value = values[i];
    if (value === null || value === undefined) { open = false; continue; }
    if (last !== null && times[i] - last > gap_s) open = false;
    text += `${open ? "L" : "M"}${x(times[i]).toFixed(1)} ${y(value).toFixed(1)}`;
    open = true;
    last = times[i];
  }
  return text;
}

function niceStep(most, wanted) {
  const raw = most / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  return [1, 2, 2.5, 5, 10].map((one) => one * power).find((one) => one >= raw);
}

function ticksY(most, wanted = 4) {
  const step = niceStep(most, wanted);
  const found = [];
  for (let value = 0; value <= most * 1.0001; value += step) found.push(value);
  return found;
}

const STEPS_S = [60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, DAY_S, 2 * DAY_S];

function ticksX(from_s, to_s, room) {
  const wanted = Math.max(2, Math.floor(room / 90));
  const step = STEPS_S.find((one) => (to_s - from_s) / one <= wanted) || 7 * DAY_S;
  const offset = new Date(1000 * to_s).getTimezoneOffset() * 60;
  const found = [];
  for (let at = Math.ceil((from_s - offset) / step) * step + offset; at < to_s; at += step) found.push(at);
  return found.map((at) => [at, step >= DAY_S ? moment(at, 0).split(" ")[0] : clock(at, false)]);
}

// Marks that would lie on top of each other become one.
function grouped(marks, x) {
  const groups = [];
  for (const mark of marks) {
    const last = groups[groups.length - 1];
    if (last && x(mark.at_s) - x(last.marks[0].at_s) < 11) last.marks.push(mark);
    else groups.push({ marks: [mark] });
  }
  return groups;
}

const nearest = (times, at) => {
  let best = 0;
  for (let i = 1; i < times.length; i += 1) if (Math.abs(times[i] - at) < Math.abs(times[best] - at)) best = i;
  return best;
};

function valueAt(times, values, at) {
  const index = nearest(times, at);
  return times.length && values[index] !== null ? values[index] : null;
}

// lines: [{key, label, values, className}]; marks: [{at_s, label, body}], body is what the tooltip shows.
// A range that is longer than the record begins with the record.
const SHORTEST_S = 120;
const begin = (times, from_s, to_s) => (times.length ? Math.max(from_s, Math.min(times[0], to_s - SHORTEST_S)) : from_s);

export function LineChart({ times, lines, from_s: asked_s, to_s, show, marks = [], markLine = 0, label, summary, height = 220, most, area, emptyText }) {
  const from_s = begin(times, asked_s, to_s);
  const [ref, width] = useWidth();
  const [hover, setHover] = useState(null);
  const [focused, setFocused] = useState(0);
  const [open, setOpen] = useState(null);
  const left = 48, right = 12, top = 12, bottom = 26;
  const all = lines.flatMap((line) => line.values).filter((value) => value !== null && value !== undefined);
  const highest = most || Math.max(...all, 0) * 1.1 || 1;
  const x = (at) => left + ((at - from_s) / (to_s - from_s)) * (width - left - right);
  const y = (value) => top + (1 - Math.min(value, highest) / highest) * (height - top - bottom);
  const gap_s = Math.max(120, (4 * (to_s - from_s)) / Math.max(20, times.length));
  const shownMarks = grouped(marks.filter((mark) => mark.at_s >= from_s && mark.at_s <= to_s), x);
  const move = (event) => {
    const box = event.currentTarget.getBoundingClientRect();
    const at = from_s + ((event.clientX - box.left - left) / (width - left - right)) * (to_s - from_s);
    setHover(times.length && at >= from_s && at <= to_s ? nearest(times, at) : null);
  };
  const markY = (at) => {
    const value = valueAt(times, lines[markLine].values, at);
    return value === null ? height - bottom : y(value);
  };
  const key = (event) => {
    const next = { ArrowRight: focused + 1, ArrowLeft: focused - 1, Home: 0, End: shownMarks.length - 1 }[event.key];
    if (event.key === "Escape") setOpen(null);
    if (next === undefined) return;
    event.preventDefault();
    const index = Math.max(0, Math.min(shownMarks.length - 1, next));
    setFocused(index);
    event.currentTarget.parentNode.querySelectorAll(".mark")[index].focus();
  };
  const current = Math.min(focused, shownMarks.length - 1);
  const tip = open !== null && shownMarks[open] ? shownMarks[open] : null;
  return html`<figure class="chart" ref=${ref} aria-label=${label}>
    <svg width=${width} height=${height} viewBox="0 0 ${width} ${height}" onPointerMove=${move} onPointerLeave=${() => setHover(null)} aria-hidden=${shownMarks.length ? null : "true"}>
      <g class="grid" aria-hidden="true">
        ${ticksY(highest, height < 150 ? 3 : 4).map((value) => html`<g><line x1=${left} x2=${width - right} y1=${y(value)} y2=${y(value)} /><text x=${left - 8} y=${y(value) + 4} text-anchor="end">${show(value)}</text></g>`)}
        ${ticksX(from_s, to_s, width - left - right).map(([at, text]) => html`<g><line class="tick" x1=${x(at)} x2=${x(at)} y1=${height - bottom} y2=${height - bottom + 4} /><text x=${x(at)} y=${height - 7} text-anchor="middle">${text}</text></g>`)}
      </g>
      <g aria-hidden="true">
        ${area && all.length ? html`<path class="area ${lines[0].className}" d=${areaPath(times, lines[0].values, x, y, height - bottom)} />` : null}
        ${lines.map((line) => html`<path class="line ${line.className}" d=${path(times, line.values, x, y, gap_s)} />`)}
        ${hover !== null ? html`<line class="cross" x1=${x(times[hover])} x2=${x(times[hover])} y1=${top} y2=${height - bottom} />` : null}
      </g>
      ${shownMarks.map((group, index) => html`<g class="mark ${group.marks.some((one) => one.bad) ? "bad" : ""}" tabindex=${index === current ? 0 : -1} role="button" aria-label=${group.marks.map((one) => one.label).join("; ")}
          transform="translate(${x(group.marks[0].at_s).toFixed(1)} ${markY(group.marks[0].at_s).toFixed(1)})"
          onPointerEnter=${() => setOpen(index)} onPointerLeave=${() => setOpen(null)} onFocus=${() => { setFocused(index); setOpen(index); }} onBlur=${() => setOpen(null)} onKeyDown=${key}>
        <rect class="target" x="-12" y="-12" width="24" height="24" />
        ${group.marks.length > 1 ? html`<circle r="8" /><text y="3.500" text-anchor="middle">${group.marks.length > 99 ? "…" : group.marks.length}</text>` : html`<path d="M0-6.500 6.500 0 0 6.500-6.500 0Z" />`}
      </g>`)}
      ${all.length ? null : html`<text class="nothing" x=${width / 2} y=${height / 2} text-anchor="middle">${emptyText || "Nothing was recorded in this range."}</text>`}
    </svg>
    ${tip ? html`<div class="tip" aria-hidden="true" style=${tipPlace(x(tip.marks[0].at_s), markY(tip.marks[0].at_s), width)}>${tip.marks.slice(-3).map((one) => one.body)}${tip.marks.length > 3 ? html`<p class="more">and ${tip.marks.length - 3} earlier actions</p>` : null}</div>` : null}
    ${hover !== null && !tip ? html`<div class="tip values" aria-hidden="true" style=${tipPlace(x(times[hover]), top + 10, width)}>
      <p class="when">${moment(times[hover], to_s)}</p>
      ${lines.map((line) => html`<p><span class="key ${line.className}"></span>${line.label}<b>${show(line.values[hover])}</b></p>`)}
    </div>` : null}
    <figcaption class="sr">${summary}</figcaption>
  </figure>`;
}

function areaPath(times, values, x, y, base) {
  const shown = times.map((at, i) => [at, values[i]]).filter(([, value]) => value !== null && value !== undefined);
  if (!shown.length) return "";
  return `M${x(shown[0][0]).toFixed(1)} ${base}${shown.map(([at, value]) => `L${x(at).toFixed(1)} ${y(value).toFixed(1)}`).join("")}L${x(shown[shown.length - 1][0]).toFixed(1)} ${base}Z`;
}

function tipPlace(x, y, width) {
  const onRight = x < width / 2;
  return { top: `${Math.max(0, y + 12)}px`, left: onRight ? `${Math.max(0, x + 10)}px` : "auto", right: onRight ? "auto" : `${Math.max(0, width - x + 10)}px` };
}

export const Legend = ({ lines }) => html`<ul class="legend">${lines.map((line) => html`<li><span class="key ${line.className}"></span>${line.label}</li>`)}</ul>`;

// A line without axes; the goal is dashed. Text beside it has the figures, so it is hidden from screen readers.
export function Sparkline({ values, goal, className, width = 96, height = 24 }) {
  const shown = values || [];
  const known = shown.filter((value) => value !== null && value !== undefined);
  if (known.length < 2) return html`<svg class="spark" width=${width} height=${height} aria-hidden="true"></svg>`;
  const least = goal === undefined ? Math.min(...known) : 0;
  const most = Math.max(...known, goal || 0) || 1;
  const room = most - least || 1;
  const x = (i) => 1 + (i / (shown.length - 1)) * (width - 4);
  const y = (value) => 2 + (1 - (value - least) / room) * (height - 4);
  const last = shown.length - 1;
  return html`<svg class="spark" width=${width} height=${height} viewBox="0 0 ${width} ${height}" aria-hidden="true">
    ${goal ? html`<line class="goal" x1="0" x2=${width} y1=${y(goal)} y2=${y(goal)} />` : null}
    <path class="line ${className || ""}" d=${path(shown.map((_, i) => i), shown, x, y, 1.5)} />
    ${shown[last] !== null ? html`<circle class=${className || ""} cx=${x(last)} cy=${y(shown[last])} r="2" />` : null}
  </svg>`;
}
