// Tenants: what the jobs of each one earn, take and cost, against its quotas.
import { html, Card, Meter, bytes, count, money, plural, points } from "./ui.js";

const MB = 1e6;
const LIMITS = [
  ["jobs", "jobs", count],
  ["lanes", "lanes", count],
  ["share", "share", count],
  ["memory_mb", "memory", (value) => bytes(value * MB)],
  ["state_mb", "state", (value) => bytes(value * MB)],
];

const isFull = (used, most) => used >= most;

export function Tenants({ tenants }) {
  const rows = Object.entries(tenants).sort(([one, first], [other, second]) => second.usage.worth - first.usage.worth || one.localeCompare(other));
  if (!rows.length) return null;
  const paid = rows.some(([, one]) => one.cost > 0);
  return html`<${Card} title="Tenants" id="tenants" className="wide flush" note=${plural(rows.length, "tenant")}>
    <table class="tenants wrap">
      <thead><tr><th scope="col">Tenant</th><th scope="col" class="number">Intents met</th><th scope="col" class="number">Utility</th><th scope="col" class="number">Budget of worth</th><th scope="col">Used of quotas</th>${paid ? html`<th scope="col" class="number">Cost</th>` : null}</tr></thead>
      <tbody>${rows.map(([name, one]) => html`<${Row} key=${name} name=${name} tenant=${one} paid=${paid} />`)}</tbody>
    </table>
  </${Card}>`;
}

function Row({ name, tenant, paid }) {
  const { usage, quota, utility } = tenant;
  const earned = `${points(utility)} of ${points(usage.worth)} points`;
  return html`<tr>
    <th scope="row">${name}${tenant.weight === 1 ? null : html`<span class="under">weight ${points(tenant.weight)}</span>`}</th>
    <td class="number" data-label="Intents met">${tenant.jobs_met}<small> of ${plural(usage.jobs, "job")}</small></td>
    <td class="number utility" data-label="Utility"><span class="value">${points(utility)}<small> / ${points(usage.worth)}</small></span><${Meter} value=${utility} most=${usage.worth} tone="plain" label=${earned} /></td>
    <td class="number" data-label="Budget of worth"><${Used} used=${usage.worth} most=${quota.worth} show=${points} /></td>
    <td class="quotas" data-label="Used of quotas"><ul>${LIMITS.map(([key, word, show]) => html`<li><${Used} used=${usage[key]} most=${quota[key]} show=${show} word=${word} /></li>`)}</ul></td>
    ${paid ? html`<td class="number" data-label="Cost">${money(tenant.cost)}</td>` : null}
  </tr>`;
}

// A quota that is used up stands out by a word, not by a colour alone.
function Used({ used, most, show, word }) {
  const name = word ? `${word} ` : "";
  if (most === null) return html`<span>${name}${show(used)}${word ? null : html`<small> no limit</small>`}</span>`;
  return html`<span class=${isFull(used, most) ? "late" : ""}>${name}${show(used)}<small> of ${show(most)}${isFull(used, most) ? ", used up" : ""}</small></span>`;
}
