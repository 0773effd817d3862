// Asking the broker, and listening to it. Everything is same-origin; a token goes in a header, never in
// an address, and is kept for this tab only.

import { el } from "./dom.js";

const TOKEN = "ackgate.token";
const RETRY_MS = [1000, 2000, 5000, 10000];

// A stream says something every 2 s, if only that there is nothing new.
const SILENT_MS = 6000;
const STREAM_GIVEN_UP_MS = 30000;

// Longer than the broker waits for other brokers.
const ANSWER_SECONDS = 40;

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

// Nothing, or nothing whole, came back. What was asked for may have been done.
export class Unanswered extends Error {}

const NO_ANSWER = "the broker does not answer";

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

// What the network makes of a broker that is gone, as an error of ours.
async function answered(work) {
  try {
    return await work;
  } catch (error) {
    if (error.name === "TimeoutError") throw new Unanswered(`the broker has not answered for ${ANSWER_SECONDS} s`);
    throw new Unanswered(NO_ANSWER);
  }
}

// Where the address of another broker is the answer, a page may neither follow nor read it.
async function fetched(path, options) {
  const answer = await answered(fetch(path, { ...options, redirect: "manual" }));
  if (answer.type === "opaqueredirect") throw new Refused(421, "another broker serves this topic now");
  return answer;
}

export async function ask(path, method = "GET", body = undefined) {
  for (;;) {
    const answer = await fetched(path, {
      method,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: AbortSignal.timeout(ANSWER_SECONDS * 1000),
    });
    if (answer.status === 401 && (await askForToken())) continue;
    if (!answer.ok) throw await refusal(answer);
    const text = await answered(answer.text());
    if (!text) return null;
    try {
      return JSON.parse(text);
    } catch {
      return text;
    }
  }
}

async function refusal(answer) {
  let reason = `the broker answers ${answer.status}`;
  try {
    reason = String(JSON.parse(await answer.text()).reason ?? reason);
  } catch { /* no JSON: the status has to do */ }
  return new Refused(answer.status, reason);
}

// Before the next try.
function pause(failures) {
  return new Promise((resume) => setTimeout(resume, RETRY_MS[Math.min(failures, RETRY_MS.length - 1)]));
}

// Server-sent events over fetch: EventSource could send no token. Returns how to stop.
export function follow(path, onView, onState) {
  let isStopped = false, attempt = new AbortController(), silent, givenUp;

  function rest() {
    clearTimeout(silent);
    clearTimeout(givenUp);
  }

  // A broker that is frozen keeps its connection, and goes on with it when it wakes up.
  function wait() {
    rest();
    silent = setTimeout(() => onState("lost", NO_ANSWER), SILENT_MS);
    givenUp = setTimeout(() => attempt.abort(), STREAM_GIVEN_UP_MS);
  }

  (async () => {
    let failures = 0;
    while (!isStopped) {
      attempt = new AbortController();
      let isHeard = false;
      try {
        wait();
        const answer = await fetched(path, { headers: headers(), signal: attempt.signal });
        if (answer.status === 401) {
          rest();
          if (await askForToken()) continue;
        }
        if (!answer.ok) throw await refusal(answer);
        await each(answer.body, (name, data) => {
          if (isStopped) return;
          if (name === "refused") throw new Refused(404, data.reason);
          wait();
          isHeard = true;
          failures = 0;
          onState("live");
          if (data) shown(onView, data);
        });
        if (!isHeard) throw new Unanswered(NO_ANSWER);
      } catch (error) {
        if (isStopped) return;
        onState("lost", error.message);
        if (error instanceof Refused && error.status < 500 && ![404, 421, 429].includes(error.status)) return;
      } finally {
        rest();
        attempt.abort();
      }
      await pause(failures++);
    }
  })();
  return () => { isStopped = true; rest(); attempt.abort(); };
}

// Asks again and again. `take` gets how to find out whether it still matters. Returns how to stop.
export function repeat(take, onState, everyMs = 5000) {
  let isStopped = false, silent;
  (async () => {
    let failures = 0;
    while (!isStopped) {
      silent = setTimeout(() => { if (!asking) onState("lost", NO_ANSWER); }, SILENT_MS);
      try {
        await take(() => isStopped);
        if (isStopped) return;
        failures = 0;
        onState("live");
      } catch (error) {
        if (!(error instanceof Refused || error instanceof Unanswered)) reportError(error);
        if (isStopped) return;
        onState("lost", error.message);
        await pause(failures++);
        continue;
      } finally {
        clearTimeout(silent);
      }
      await new Promise((resume) => setTimeout(resume, everyMs));
    }
  })();
  return () => { isStopped = true; clearTimeout(silent); };
}

// An error of the page itself is no lost connection: it goes to the console.
function shown(onView, data) {
  try {
    onView(data);
  } catch (error) {
    reportError(error);
  }
}

async function each(stream, onEvent) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await answered(reader.read());
    if (done) return;
    rest += value;
    for (let end = rest.indexOf("\n\n"); end >= 0; end = rest.indexOf("\n\n")) {
      const lines = rest.slice(0, end).split("\n");
      rest = rest.slice(end + 2);
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
      const data = lines.filter((line) => line.startsWith("data: ")).map((line) => line.slice(6)).join("\n");
      onEvent(name, data ? JSON.parse(data) : null);
    }
  }
}

let asking = null;

function askForToken() {
  asking ??= new Promise((resolve) => {
    const input = el("input", { type: "password", autocomplete: "off", "aria-label": "Token", required: true });
    const dialog = el("dialog", {},
      el("form", { method: "dialog" },
        el("h2", {}, "This broker asks who you are"),
        el("p", {}, "Paste a token. It stays in this tab and goes to this broker only."),
        input,
        el("div", { class: "buttons" },
          el("button", { type: "button", onclick: () => dialog.close("") }, "Cancel"),
          el("button", { class: "main", value: "ok" }, "Use it"))));
    dialog.addEventListener("close", () => {
      const token = input.value.trim();
      const isGiven = dialog.returnValue === "ok" && token !== "";
      if (isGiven) sessionStorage.setItem(TOKEN, token);
      dialog.remove();
      asking = null;
      resolve(isGiven);
    });
    document.body.append(dialog);
    dialog.showModal();
  });
  return asking;
}

export function topicPath(topic) {
  const parts = topic.replace(/^persistent:\/\//, "").split("/");
  return parts.map(encodeURIComponent).join("/");
}

export function subscriptionPath(topic, name) {
  return `ackgate/subscriptions/${topicPath(topic)}/${encodeURIComponent(name)}`;
}
