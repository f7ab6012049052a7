// The operators of a job as a graph from left to right: rows per second on the edges, busy share as a bar and a word.
import { html, count, percent } from "./ui.js";

const WIDTH = 168, HEIGHT = 86, GAP_X = 96, GAP_Y = 22, PAD = 12;

// The column of an operator is the longest way from a source; rows of a column keep the order of their inputs.
function placed(operators) {
  const columns = [], at = {};
  for (const one of operators) {
    const column = one.inputs.length ? Math.max(...one.inputs.map((name) => at[name].column)) + 1 : 0;
    (columns[column] = columns[column] || []).push(one.name);
    at[one.name] = { column, row: columns[column].length - 1 };
  }
  const rows = Math.max(...columns.map((column) => column.length));
  const height = rows * (HEIGHT + GAP_Y) - GAP_Y;
  for (const place of Object.values(at)) {
    const own = columns[place.column].length * (HEIGHT + GAP_Y) - GAP_Y;
    place.x = PAD + place.column * (WIDTH + GAP_X);
    place.y = PAD + (height - own) / 2 + place.row * (HEIGHT + GAP_Y);
  }
  return { at, width: columns.length * (WIDTH + GAP_X) - GAP_X + 2 * PAD, height: height + 2 * PAD };
}

const busyWord = (busy) => (busy === null ? "" : busy >= 0.8 ? "hot" : busy >= 0.5 ? "warm" : "calm");

export function Graph({ operators, edges }) {
  const { at, width, height } = placed(operators);
  return html`<div class="scroll" tabindex="0" role="region" aria-label="Operators of the job">
    <svg class="graph" width=${width} height=${height} viewBox="0 0 ${width} ${height}" role="img" aria-label=${described(operators, edges)}>
      ${edges.map((edge) => html`<${Edge} from=${at[edge.source]} to=${at[edge.target]} rows_s=${edge.rows_s} />`)}
      ${operators.map((one) => html`<${Node} one=${one} place=${at[one.name]} />`)}
    </svg>
  </div>`;
}

function Edge({ from, to, rows_s }) {
  const x1 = from.x + WIDTH, y1 = from.y + HEIGHT / 2, x2 = to.x, y2 = to.y + HEIGHT / 2, middle = (x1 + x2) / 2;
  return html`<g class="edge"><path d="M${x1} ${y1}C${middle} ${y1} ${middle} ${y2} ${x2 - 7} ${y2}" /><path class="head" d="M${x2} ${y2}l-8-4.500v9Z" />
    <text x=${x2 - 12} y=${y2 + (y1 < y2 ? 18 : -8)} text-anchor="end">${count(rows_s)}/s</text></g>`;
}

function Node({ one, place }) {
  const word = busyWord(one.busy);
  const name = one.name.length > 20 ? `${one.name.slice(0, 19)}…` : one.name;
  const lanes = one.lanes === null ? "fused" : `${one.lanes} lane${one.lanes === 1 ? "" : "s"}`;
  return html`<g class="node ${word}" transform="translate(${place.x} ${place.y})">
    <rect class="box" width=${WIDTH} height=${HEIGHT} rx="8" />
    <text class="name" x="12" y="22">${name}</text>
    <text class="sub" x="12" y="40">${one.role === "operator" ? "" : `${one.role} · `}${lanes}</text>
    ${one.busy === null ? null : html`<rect class="track" x="12" y="52" width="72" height="6" rx="3" /><rect class="busy" x="12" y="52" width=${(72 * one.busy).toFixed(1)} height="6" rx="3" />
    <text class="sub" x=${WIDTH - 12} y="59" text-anchor="end">${percent(one.busy)} busy</text>`}
    ${one.backlog ? html`<text class="waits" x="12" y="75">${count(one.backlog)} rows wait</text>` : null}
  </g>`;
}

function described(operators, edges) {
  const nodes = operators.map((one) => `${one.name}: ${one.lanes === null ? "fused" : `${one.lanes} lanes`}, busy ${percent(one.busy)}`);
  const ways = edges.map((edge) => `${edge.source} to ${edge.target} ${count(edge.rows_s)} rows per second`);
  return [...nodes, ...ways].join("; ");
}
