// Talks to the service: JSON under /api/v1, the session, and the stream of events.
const PREFIX = "/api/v1";
let csrf = "";

export class Refused extends Error {
  constructor(sentence, code) { super(sentence); this.code = code; }
}

async function asked(method, path, body) {
  const headers = { Accept: "application/json" };
  if (body !== undefined) headers["Content-Type"] = "application/json";
  if (method !== "GET") headers["X-CSRF-Token"] = csrf;
  let answer;
  try {
    answer = await fetch(PREFIX + path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new Refused("The service does not answer.", 0);
  }
  const found = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(found.error || `The service answered ${answer.status}.`, answer.status);
  return found;
}

export const get = (path) => asked("GET", path);
let removals = 0;
export const removing = () => removals > 0;
export async function change(method, path, body) {
  const removes = method === "DELETE" ? 1 : 0;
  removals += removes;
  try { return await asked(method, path, body); } finally { removals -= removes; }
}
export const jobPath = (name) => `/jobs/${encodeURIComponent(name)}`;

export async function logIn(secret) {
  const session = await asked("POST", "/session", { secret });
  csrf = session.csrf;
  return session;
}

export async function currentSession() {
  const session = await get("/session");
  csrf = session.csrf;
  return session;
}

export const logOut = () => asked("DELETE", "/session");

// Calls back for each change, and when the connection comes or goes.
export function listen(onNews, onState) {
  const source = new EventSource(`${PREFIX}/events`);
  source.addEventListener("round", onNews);
  source.addEventListener("hello", () => onState(true));
  source.onerror = () => onState(false);
  return () => source.close();
}
