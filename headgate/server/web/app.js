// The page: session, address, theme, updates; which of the two pages is shown.
import { html, render, useEffect, useRef, useState } from "./ui.js";
import { currentSession, get, jobPath, listen, logIn, logOut } from "./api.js";
import { ClusterPage } from "./cluster.js";
import { JobPage } from "./job.js";

const THEMES = ["auto", "light", "dark"];

function readPlace() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map(decodeURIComponent);
  return { job: parts[0] === "jobs" && parts[1] ? parts[1] : null, params: new URLSearchParams(query || "") };
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
    const path = place.job ? `/jobs/${encodeURIComponent(place.job)}` : "/";
    history.replaceState(null, "", `#${path}${query ? `?${query}` : ""}`);
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
  return { job, story };
}

function App({ session, onLost }) {
  const [place, setParam] = usePlace();
  const [theme, nextTheme] = useTheme();
  const range = Number(place.params.get("range")) || 3600;
  const { data, live, trouble, reload } = useData(place, range, session, onLost);
  const main = useRef(null);
  const before = useRef(place.job);
  useEffect(() => {
    document.title = place.job ? `${place.job} · Headgate` : "Headgate";
    if (before.current !== place.job) { before.current = place.job; main.current.focus(); scrollTo(0, 0); }
  }, [place.job]);
  const choose = (value) => setParam("range", value === 3600 ? "" : String(value));
  const page = place.job
    ? data.job && html`<${JobPage} job=${data.job} story=${data.story} range=${range} choose=${choose} session=${session} reload=${reload} />`
    : data.cluster && html`<${ClusterPage} cluster=${data.cluster} jobs=${data.jobs} range=${range} choose=${choose} params=${place.params} setParam=${setParam} />`;
  const now = data.cluster || data.job;
  return html`<a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
  <header class="top">
    <a class="brand" href="#/"><img src="/web/icon.svg" alt="" width="24" height="24" />Headgate</a>
    ${place.job ? html`<nav aria-label="Place"><a href="#/">Cluster</a><span aria-hidden="true">/</span><span class="here" aria-current="page">${place.job}</span></nav>` : null}
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
