// Asking the broker, and listening to it. Everything is same-origin; a token goes in a header, never in
// an address, and is kept for this tab only.

import { el } from "./dom.js";

const TOKEN = "ackgate.token";
const RETRY_MS = [1000, 2000, 5000, 10000];

export class Refused extends Error {
  constructor(status, reason) {
    super(reason);
    this.status = status;
  }
}

function headers(more = {}) {
  const token = sessionStorage.getItem(TOKEN);
  return token ? { ...more, Authorization: `Bearer ${token}` } : more;
}

export async function ask(path, method = "GET", body = undefined) {
  for (;;) {
    const answer = await fetch(path, {
      method,
      headers: headers(body === undefined ? {} : { "Content-Type": "application/json" }),
      body: body === undefined ? undefined : JSON.stringify(body),
      redirect: "error",
    });
    if (answer.status === 401 && (await askForToken())) continue;
    if (!answer.ok) throw await refusal(answer);
    const text = await answer.text();
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

// Server-sent events over fetch: EventSource could send no token. Returns how to stop.
export function follow(path, onView, onState) {
  const stopping = new AbortController();
  (async () => {
    let failures = 0;
    while (!stopping.signal.aborted) {
      try {
        const answer = await fetch(path, { headers: headers(), signal: stopping.signal, redirect: "error" });
        if (answer.status === 401 && (await askForToken())) continue;
        if (!answer.ok) throw await refusal(answer);
        failures = 0;
        await each(answer.body, (name, data) => {
          if (name === "refused") throw new Refused(404, data.reason);
          onState("live", "");
          if (data) shown(onView, data);
        });
      } catch (error) {
        if (stopping.signal.aborted) return;
        onState("lost", error instanceof Refused ? error.message : "the broker does not answer");
        if (error instanceof Refused && error.status < 500 && ![404, 429].includes(error.status)) return;
        const pause = RETRY_MS[Math.min(failures++, RETRY_MS.length - 1)];
        await new Promise((resume) => setTimeout(resume, pause));
      }
    }
  })();
  return () => stopping.abort();
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
    const { value, done } = await reader.read();
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
