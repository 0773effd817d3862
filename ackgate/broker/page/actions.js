// What an operator may do to a subscription: each action is one request of the admin interface, and
// happens only after a dialog that says what it does. What cannot be undone wants the name typed.

import { Unanswered, ask, topicPath } from "./api.js";
import { el } from "./dom.js";

const ADMIN = "admin/v2/persistent";

const ACTIONS = [
  {
    title: "Skip entries", fields: [["entries", "number", "How many", "1"]],
    text: (what) => `Acks the next unacked entries of ${what}. They are never delivered to it.`,
    isFinal: true,
    request: (path, given) => ["POST", `${path.subscription}/skip/${integer(given.entries)}`],
  },
  {
    title: "Skip all", fields: [],
    text: (what) => `Acks everything that the topic holds, for ${what}. Nothing of its backlog is ever delivered.`,
    isFinal: true,
    request: (path) => ["POST", `${path.subscription}/skip_all`],
  },
  {
    title: "Seek to a time", fields: [["at", "datetime-local", "Published at or after (your time zone)", ""]],
    text: (what) => `Sends the consumers of ${what} away and reads from there. Acks after that time are forgotten; consumers come back by themselves.`,
    isFinal: true,
    request: (path, given) => ["POST", `${path.subscription}/resetcursor/${time(given.at)}`],
  },
  {
    title: "Seek to a position", fields: [["at", "text", "ledger:entry", ""]],
    text: (what) => `Sends the consumers of ${what} away and reads from this entry. Acks after it are forgotten.`,
    isFinal: true,
    request: (path, given) => {
      const [ledgerId, entryId] = position(given.at);
      return ["POST", `${path.subscription}/resetcursor`, { ledgerId, entryId }];
    },
  },
  {
    title: "Expire", fields: [["seconds", "number", "Published more than so many seconds ago", "3600"]],
    text: (what) => `Acks what was published longer ago, for ${what}.`,
    isFinal: true,
    request: (path, given) => ["POST", `${path.subscription}/expireMessages/${integer(given.seconds)}`],
  },
  {
    title: "Cancel a delayed message", fields: [["at", "text", "ledger:entry", ""]],
    text: () => "Takes one message that waits for its time away from all subscriptions of the topic.",
    isFinal: true,
    request: (path, given) => {
      const [ledgerId, entryId] = position(given.at);
      return ["DELETE", `${path.topic}/delayed/${ledgerId}/${entryId}`];
    },
  },
  {
    title: "Unload the topic", fields: [],
    text: () => "Closes the topic; clients connect again and load it, here or on another broker. No ack is lost.",
    isFinal: false,
    request: (path) => ["PUT", `${path.topic}/unload`],
  },
];

function integer(text) {
  if (!/^[0-9]{1,18}$/.test(text)) throw new Error(`${text || "nothing"} is not a number`);
  return text;
}

function position(text) {
  const found = /^([0-9]{1,18}):([0-9]{1,18})$/.exec(text.trim());
  if (!found) throw new Error("expected ledger:entry, 12:0 for one");
  return [Number(found[1]), Number(found[2])];
}

function time(text) {
  const ms = new Date(text).getTime();
  if (!Number.isFinite(ms) || ms < 0) throw new Error("expected a date and a time");
  return String(ms);
}

export function actions(topic, name, { say }) {
  const base = `${ADMIN}/${topicPath(topic)}`;
  const path = { topic: base, subscription: `${base}/subscription/${encodeURIComponent(name)}` };
  return el("div", { class: "buttons", role: "group", "aria-label": "Actions" },
    ACTIONS.map((action) => el("button", { type: "button", onclick: () => confirm(action, path, name, say) }, `${action.title}…`)));
}

function confirm(action, path, name, say) {
  const inputs = action.fields.map(([key, type, label, value]) =>
    [key, el("input", { name: key, type, value, required: true, "aria-label": label }), label]);
  const typed = el("input", { type: "text", autocomplete: "off", name: "typed", "aria-label": "Name of the subscription", required: true });
  const wrong = el("p", { class: "bad", role: "alert" });
  const waiting = el("p", { class: "dim", role: "status" });
  const act = el("button", { class: "main", name: "do" }, action.title);
  const dialog = el("dialog", { class: "confirm" });
  const form = el("form", {},
    el("h2", {}, action.title),
    el("p", {}, action.text(`“${name}”`)),
    inputs.map(([, input, label]) => el("label", {}, label, input)),
    action.isFinal ? el("label", {}, `This cannot be undone. Type ${name} to confirm:`, typed) : null,
    wrong, waiting,
    el("div", { class: "buttons" },
      el("button", { type: "button", onclick: () => dialog.close() }, "Cancel"),
      act));
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    wrong.textContent = "";
    if (action.isFinal && typed.value !== name) {
      wrong.textContent = "the name is another one";
      return;
    }
    act.disabled = true;
    try {
      const [method, where, body] = action.request(path, Object.fromEntries(inputs.map(([key, input]) => [key, input.value])));
      waiting.textContent = "The broker is asked…";
      await ask(where, method, body);
      dialog.close();
      say(`${action.title}: done`, "good");
    } catch (error) {
      const why = error instanceof Unanswered ? `${error.message}; it may be done or not: look before you repeat it` : error.message;
      if (dialog.open) wrong.textContent = why;
      else say(`${action.title}: ${why}`);
    } finally {
      act.disabled = false;
      waiting.textContent = "";
    }
  });
  dialog.append(form);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
