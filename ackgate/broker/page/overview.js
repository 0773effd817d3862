// All subscriptions, worst first. The broker filters, sorts and cuts; this shows one page of it, live.

import { follow } from "./api.js";
import { STATES, badge, count, el, fill, span, sparkline, typeOf } from "./dom.js";

const ROWS = 50;
const DEFAULTS = { text: "", state: "", order: "worst", reversed: "", offset: "0" };
const ASCENDING = ["topic", "subscription", "shuts-in"];

export function overview(main, given, { address, note, say, state }) {
  const asked = { ...DEFAULTS, ...Object.fromEntries(Object.entries(given).filter(([key]) => key in DEFAULTS)) };
  let stop = () => {};

  const search = el("input", {
    type: "search", placeholder: "topic or subscription   /", "aria-label": "Filter by name", value: asked.text,
    maxlength: 256,
  });
  let typing;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => change({ text: search.value, offset: "0" }), 250);
  });
  const states = Object.keys(STATES).map((name) => el("button", {
    type: "button", class: `badge ${name}`, "data-state": name,
    onclick: () => change({ state: asked.state === name ? "" : name, offset: "0" }),
  }));
  const summary = el("p", { class: "dim", id: "summary" });
  const turn = (text, by) => el("button", {
    type: "button", onclick: () => change({ offset: String(Math.max(0, Number(asked.offset) + by * ROWS)) }),
  }, text);
  const previous = turn("← previous", -1), next = turn("next →", 1);

  const heading = (title, order) => el("button", {
    type: "button", class: "sort", "data-order": order, "data-title": title,
    onclick: () => change({ order, reversed: asked.order === order && !asked.reversed ? "true" : "", offset: "0" }),
  });
  const columns = [
    ["Ranges", "ranges", (row) => el("span", { class: "cell" },
      sparkline(row.rangesHistory, row.rangesMax),
      el("span", {}, count(row.ranges), row.rangesMax ? el("span", { class: "dim" }, ` / ${count(row.rangesMax)}`) : ""))],
    ["Gate", "shuts-in", gate],
    ["Backlog", "backlog", (row) => count(row.backlog)],
    ["Unacked", "unacked", (row) => count(row.unackedMessages)],
    ["Again after a crash", "again", (row) => row.isOnFallback
      ? el("span", { class: "warn" }, `${count(row.comesAgain)}, fallback`)
      : el("span", { class: row.comesAgain ? "bad" : "dim" }, count(row.comesAgain))],
    ["Delayed, nacked", "delayed", (row) => `${count(row.delayed)}, ${count(row.nacks)}`],
    ["Consumers", "consumers", (row) => count(row.consumers)],
  ];
  const body = el("tbody");
  const rows = el("table", { id: "rows" },
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, heading("Worst", "worst"), heading("Subscription", "subscription"), heading("Topic", "topic")),
      columns.map(([title, order]) => el("th", { scope: "col" }, heading(title, order))))),
    body);
  main.append(
    el("div", { class: "bar" }, search, el("div", { class: "states", role: "group", "aria-label": "Filter by state" }, states)),
    el("div", { class: "scroll" }, rows),
    el("div", { class: "bar pager" }, previous, summary, next));

  // On the page of the broker that has loaded it.
  function place(row) {
    const base = /^https?:\/\//.test(row.broker) ? `${row.broker}/` : "";
    return base + address("subscription", { topic: row.topic, name: row.subscription });
  }

  function named(row) {
    return el("td", { class: "named" },
      el("div", {}, badge(row.severity), " ", el("a", { href: place(row) }, row.subscription), typeOf(row)),
      el("div", { class: "topic" }, row.topic.replace(/^persistent:\/\//, "")),
      row.why.map((sentence, place) => el("div", { class: place ? "why" : "why first" }, sentence)));
  }

  function gate(row, now) {
    if (row.shutSinceMs !== null) return el("span", { class: "bad" }, `shut for ${span(now - row.shutSinceMs)}`);
    if (row.shutsInSeconds !== null) return el("span", { class: "warn" }, `shuts in ${span(row.shutsInSeconds * 1000)}`);
    return el("span", { class: "dim" }, row.isGateEnabled ? "open" : "off");
  }

  const line = (row, now) => el("tr", { "data-state": row.severity }, named(row),
    columns.map(([title, , cell]) => el("td", { "data-title": title }, cell(row, now))));

  function showRows(view) {
    const focused = document.activeElement?.closest("#rows a")?.getAttribute("href");
    fill(body, view.rows.length ? view.rows.map((row) => line(row, view.takenMs))
      : el("tr", {}, el("td", { class: "dim", colspan: columns.length + 1 },
        view.total ? "no subscription matches" : "no loaded topic has a subscription yet")));
    if (focused) [...body.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
  }

  function show(view) {
    if (view.offset && !view.rows.length) {
      change({ offset: String(Math.max(0, Math.ceil(view.matching / ROWS) - 1) * ROWS) });
      return;
    }
    showRows(view);
    for (const button of states) button.textContent = `${count(view.severities[button.dataset.state])} ${STATES[button.dataset.state]}`;
    const first = view.matching ? view.offset + 1 : 0;
    summary.textContent = `${count(first)} to ${count(view.offset + view.rows.length)} of ${count(view.matching)}`
      + (view.matching === view.total ? "" : ` that match, ${count(view.total)} in all`)
      + ` · asked ${view.source.replace(/^https?:\/\//, "")}`;
    say(view.missing.length ? `not in it: ${view.missing.join("; ")}` : "");
    previous.disabled = view.offset === 0;
    next.disabled = view.offset + view.rows.length >= view.matching;
    rows.removeAttribute("aria-busy");
    main.dataset.ready = String(view.takenMs);
  }

  function change(changed) {
    Object.assign(asked, changed);
    note("subscriptions", Object.fromEntries(Object.entries(asked).filter(([key, value]) => value !== DEFAULTS[key])));
    listen();
  }

  function listen() {
    stop();
    delete main.dataset.ready;
    rows.setAttribute("aria-busy", "true");
    for (const button of states) button.setAttribute("aria-pressed", asked.state === button.dataset.state);
    for (const button of rows.querySelectorAll("button.sort")) {
      const { order, title } = button.dataset, isIt = asked.order === order;
      button.setAttribute("aria-pressed", isIt);
      button.textContent = isIt ? `${title} ${ASCENDING.includes(order) === !asked.reversed ? "▲" : "▼"}` : title;
    }
    const query = new URLSearchParams({ ...asked, reversed: asked.reversed || "false", rows: String(ROWS) });
    if (!asked.state) query.delete("state");
    stop = follow(`ackgate/overview/events?${query}`, show, (kind, why) => {
      state(kind, why);
      if (kind === "lost") say(why);
    });
  }

  listen();
  return () => { stop(); clearTimeout(typing); delete main.dataset.ready; };
}
