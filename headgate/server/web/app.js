// The page: session, address, theme, updates; which of the three pages is shown.
import { html, render, useEffect, useRef, useState } from "./ui.js";
import { currentSession, get, jobPath, listen, logIn, logOut, removing } from "./api.js";
import { ClusterPage } from "./cluster.js";
import { JobPage } from "./job.js";
import { WhatIfPage } from "./whatif.js";

const THEMES = ["auto", "light", "dark"];

function readPlace() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  const job = parts[0] === "jobs" && parts[1] ? parts[1] : null;
  return { path, job, whatIf: parts[0] === "what-if", params: new URLSearchParams(query || "") };
}

function usePlace() {
  const [place, setPlace] = useState(readPlace);
  useEffect(() => {
    const changed = () => setPlace(readPlace());
    addEventListener("hashchange", changed);
    return () => removeEventListener("hashchange", changed);
  }, []);
  const set = (name, value) => {
    const params = new URLSearchParams(place.params);
    if (value) params.set(name, value); else params.delete(name);
    const query = params.toString();
    history.replaceState(null, "", `#${place.path || "/"}${query ? `?${query}` : ""}`);
    setPlace(readPlace());
  };
  return [place, set];
}

function useTheme() {
  const [theme, setTheme] = useState(localStorage.getItem("theme") || "auto");
  useEffect(() => {
    localStorage.setItem("theme", theme);
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
  }, [theme]);
  return [theme, () => setTheme(THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length])];
}

// Data for the place that is shown: asked for when the place changes and whenever the service has news, never twice at once.
function useData(place, range, session, onLost) {
  const [data, setData] = useState({});
  const [live, setLive] = useState(null);
  const [trouble, setTrouble] = useState("");
  const busy = useRef(false), again = useRef(false), serial = useRef(0);
  const load = async () => {
    if (document.hidden) { again.current = true; return; }
    // A job that is being removed, or a page that is being left, has nothing to ask for.
    if (removing() || readPlace().job !== place.job) return;
    if (busy.current) { again.current = true; return; }
    busy.current = true;
    const mine = serial.current;
    try {
      const found = place.job ? await jobData(place.job, range) : await clusterData(range);
      if (mine === serial.current) { setData({ key: place.job, ...found }); setTrouble(""); }
    } catch (error) {
      if (error.code === 401) onLost(); else if (mine === serial.current) setTrouble(error.message);
    }
    busy.current = false;
    if (again.current) { again.current = false; latest.current(); }
  };
  const latest = useRef(load);
  latest.current = load;
  useEffect(() => { serial.current += 1; latest.current(); }, [place.job, range]);
  useEffect(() => listen(() => latest.current(), (state) => { setLive(state); if (state) latest.current(); }), [session.who]);
  useEffect(() => {
    const shown = () => { if (!document.hidden && again.current) { again.current = false; latest.current(); } };
    document.addEventListener("visibilitychange", shown);
    return () => document.removeEventListener("visibilitychange", shown);
  }, []);
  return { data: data.key === place.job ? data : {}, live, trouble, reload: () => latest.current() };
}

async function clusterData(range) {
  const [cluster, jobs] = await Promise.all([get(`/cluster?range_s=${range}`), get(`/jobs?range_s=${range}`)]);
  return { cluster, jobs };
}

async function jobData(name, range) {
  const [job, story] = await Promise.all([get(`${jobPath(name)}?range_s=${range}`), get(`${jobPath(name)}/story?range_s=${range}`)]);
  const { epochs } = job.status.state === "running" ? await get(`${jobPath(name)}/epochs`) : { epochs: [] };
  return { job, story, epochs };
}

function App({ session, onLost }) {
  const [place, setParam] = usePlace();
  const [theme, nextTheme] = useTheme();
  const range = Number(place.params.get("range")) || 3600;
  const { data, live, trouble, reload } = useData(place, range, session, onLost);
  const main = useRef(null);
  const here = place.job || (place.whatIf ? "What if?" : "");
  const before = useRef(here);
  useEffect(() => {
    document.title = here ? `${here} · Headgate` : "Headgate";
    if (before.current !== here) { before.current = here; main.current.focus(); scrollTo(0, 0); }
  }, [here]);
  const choose = (value) => setParam("range", value === 3600 ? "" : String(value));
  const page = place.job
    ? data.job && html`<${JobPage} job=${data.job} story=${data.story} epochs=${data.epochs} range=${range} choose=${choose} session=${session} reload=${reload} />`
    : data.cluster && place.whatIf ? html`<${WhatIfPage} cluster=${data.cluster} jobs=${data.jobs} params=${place.params} />`
    : data.cluster && html`<${ClusterPage} cluster=${data.cluster} jobs=${data.jobs} range=${range} choose=${choose} params=${place.params} setParam=${setParam} tenant=${session.tenant} />`;
  const now = data.cluster || data.job;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
  <header class="top">
    <a class="brand" href="#/"><img src="/web/icon.svg" alt="" width="24" height="24" />Headgate</a>
    <nav aria-label="Pages"><a href="#/" aria-current=${here ? null : "page"}>Cluster</a>${place.job ? html`<span aria-hidden="true">/</span><span class="here" aria-current="page">${place.job}</span>` : null}${session.tenant ? null : html`<a class="what-if" href="#/what-if" aria-current=${place.whatIf ? "page" : null}>What if?</a>`}</nav>
    <div class="right">
      <span class="live ${live === false ? "off" : ""}" role="status">${live === false ? "not connected" : now ? "live" : "connecting"}</span>
      <button type="button" class="quiet" onClick=${nextTheme} aria-label="Theme: ${theme}">${{ auto: "Auto", light: "Light", dark: "Dark" }[theme]}</button>
      <span class="who">${session.who}</span>
      <button type="button" class="quiet" onClick=${() => logOut().finally(onLost)}>Log out</button>
    </div>
  </header>
  <main id="main" tabindex="-1" ref=${main}>
    ${trouble ? html`<p class="banner bad" role="alert">${trouble}</p>` : null}
    ${page || (trouble ? null : html`<p class="loading">Loading …</p>`)}
  </main>`;
}

function LogIn({ onSession, refused }) {
  const [secret, setSecret] = useState("");
  const [error, setError] = useState(refused || "");
  const submit = async (event) => {
    event.preventDefault();
    try { onSession(await logIn(secret.trim())); } catch (found) { setError(found.message); }
  };
  return html`<main class="login" id="main">
    <h1><img src="/web/icon.svg" alt="" width="32" height="32" />Headgate</h1>
    <p>Run <code>headgate ui</code> on the machine of the service to open the dashboard, or enter a login code or the token of its home.</p>
    <form onSubmit=${submit}>
      <label for="secret">Login code or token</label>
      <input id="secret" type="password" autocomplete="off" required value=${secret} onInput=${(event) => setSecret(event.target.value)} aria-describedby="refused" />
      <button class="primary" type="submit">Log in</button>
      <p id="refused" class="refused" role="alert">${error}</p>
    </form>
  </main>`;
}

function Root() {
  const [session, setSession] = useState(undefined);
  const [refused, setRefused] = useState("");
  useEffect(() => { begin().then(setSession, (error) => { setRefused(error.message); setSession(null); }); }, []);
  if (session === undefined) return html`<p class="loading">Loading …</p>`;
  if (session === null) return html`<${LogIn} onSession=${setSession} refused=${refused} />`;
  return html`<${App} session=${session} onLost=${() => { setRefused(""); setSession(null); }} />`;
}

async function begin() {
  const code = location.hash.match(/^#login=(.+)$/);
  if (code) history.replaceState(null, "", "#/");
  const session = await currentSession();
  if (session.who) return session;
  return code ? logIn(code[1]) : null;
}

render(html`<${Root} />`, document.getElementById("app"));
