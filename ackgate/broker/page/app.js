// The frame: which view the address names, light or dark, what the broker says about the connection.
//
// A view is `#/NAME?key=value`: copying the address copies the view. A view is a function of its
// parameters; it returns how to leave it.

import { el, moment } from "./dom.js";
import { broker, storage } from "./broker.js";
import { message } from "./message.js";
import { overview } from "./overview.js";
import { subscription } from "./subscription.js";

const VIEWS = {
  subscriptions: { title: "Subscriptions", show: overview },
  subscription: { show: subscription },
  message: { title: "Message", show: message },
  storage: { title: "Storage", show: storage },
  broker: { title: "Broker", show: broker },
};

let leave = () => {};

export function address(view, parameters = {}) {
  const known = Object.entries(parameters).filter(([, value]) => value !== "" && value !== undefined && value !== null);
  const query = new URLSearchParams(known).toString();
  return `#/${view}${query ? `?${query}` : ""}`;
}

function route() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split("?");
  const name = VIEWS[path] ? path : "subscriptions";
  leave();
  say("");
  heardMs = null;
  state("");
  const main = document.getElementById("view");
  main.replaceChildren();
  for (const link of document.querySelectorAll("#nav a")) {
    if (link.dataset.view === name) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  const parameters = Object.fromEntries(new URLSearchParams(query ?? ""));
  document.title = `${parameters.name ?? VIEWS[name].title ?? name} · ackgate`;
  leave = VIEWS[name].show(main, parameters, tools) ?? (() => {});
}

let heardMs = null;

// Live, lost (then the reason, and of when the figures are that are still shown), or neither.
function state(kind, why = "") {
  const live = document.getElementById("live"), lost = document.getElementById("lost");
  if (kind === "live") {
    heardMs = Date.now();
    if (live.className === "lost") say("");
  }
  if (live.className !== kind) {
    live.className = kind;
    live.textContent = kind === "lost" ? "not live" : kind;
  }
  document.getElementById("view").toggleAttribute("data-old", kind === "lost");
  const text = kind !== "lost" ? "" : heardMs === null ? `Nothing to show yet: ${why}`
    : `The figures below are of ${moment(heardMs)}: ${why}`;
  if (lost.dataset.text === text) return; // read aloud once
  if (!lost.dataset.text) lost.classList.toggle("over", scrollY > 0); // what is being read stays in its place
  lost.dataset.text = text;
  lost.replaceChildren(text, ...wayTo(why));
}

// A link to the broker that serves what is asked for, if that is the reason.
function wayTo(why) {
  const owner = /^broker (https?:\/\/[^\s/]+) serves this topic$/.exec(why);
  return owner ? [" ", el("a", { href: `${owner[1]}/${location.hash}` }, "Go there")] : [];
}

let silence;

function say(text, kind = "bad") {
  const said = document.getElementById("said");
  clearTimeout(silence);
  said.className = text ? kind : "";
  said.replaceChildren(text, ...wayTo(text));
  if (kind === "good") silence = setTimeout(() => say(""), 6000);
}

// Changes the address without a new view: for what a view shows of itself.
function note(view, parameters) {
  history.replaceState(null, "", address(view, parameters));
}

const tools = { address, note, say, state };

function theme(next) {
  if (next) localStorage.setItem("ackgate.theme", next);
  const wanted = next ?? localStorage.getItem("ackgate.theme");
  if (wanted) document.documentElement.dataset.theme = wanted;
}

function isDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

theme();
document.getElementById("theme").addEventListener("click", () => {
  theme(isDark() ? "light" : "dark");
  document.dispatchEvent(new Event("themed"));
});
document.getElementById("nav").append(...Object.entries(VIEWS)
  .filter(([, view]) => view.title)
  .map(([name, view]) => el("a", { href: address(name), "data-view": name }, view.title)));
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || /^(INPUT|TEXTAREA|SELECT)$/.test(document.activeElement?.tagName ?? "")) return;
  const field = document.querySelector("input[type=search]");
  if (field) {
    event.preventDefault();
    field.focus();
  }
});
window.addEventListener("scroll", () => { if (scrollY === 0) document.getElementById("lost").classList.remove("over"); });
window.addEventListener("hashchange", route);
route();
