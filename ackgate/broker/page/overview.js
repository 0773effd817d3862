// All subscriptions, worst first. The broker filters, sorts and cuts; this shows one page of it, live.

import { FormatModule, ResizeTableModule, ResponsiveLayoutModule, Tabulator } from "./vendor/tabulator.js";
import { follow } from "./api.js";
import { STATES, badge, count, el, span, sparkline } from "./dom.js";

Tabulator.registerModule([FormatModule, ResizeTableModule, ResponsiveLayoutModule]);

const ROWS = 50;
const DEFAULTS = { text: "", state: "", order: "worst", reversed: "", offset: "0" };

export function overview(main, given, { address, note, say, state }) {
  const asked = { ...DEFAULTS, ...Object.fromEntries(Object.entries(given).filter(([key]) => key in DEFAULTS)) };
  let shown = [];
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
  const states = el("div", { class: "states", role: "group", "aria-label": "Filter by state" });
  const summary = el("p", { class: "dim", id: "summary" });
  const back = el("button", { type: "button", onclick: () => change({ offset: String(Math.max(0, Number(asked.offset) - ROWS)) }) }, "← earlier");
  const next = el("button", { type: "button", onclick: () => change({ offset: String(Number(asked.offset) + ROWS) }) }, "later →");
  const holder = el("div", { id: "rows" });
  main.append(
    el("div", { class: "bar" }, search, states),
    holder,
    el("div", { class: "bar pager" }, back, summary, next));

  function heading(title, order) {
    return () => {
      const isIt = asked.order === order;
      return el("button", {
        type: "button", class: "sort", "data-order": order,
        "aria-pressed": isIt,
        onclick: () => change({ order, reversed: isIt && !asked.reversed ? "true" : "", offset: "0" }),
      }, title, isIt ? (asked.reversed ? " ▲" : " ▼") : "");
    };
  }

  const number = (title, order, cell, more = {}) => ({
    title, titleFormatter: heading(title, order), field: order, hozAlign: "right", headerSort: false,
    minWidth: 84, widthGrow: 1, formatter: (shownCell) => cell(shownCell.getData().row), ...more,
  });

  const columns = () => [
    {
      title: "Subscription", field: "subscription", headerSort: false, widthGrow: 7, minWidth: 260, responsive: 0,
      titleFormatter: () => el("span", {}, heading("Worst", "worst")(), " ", heading("Subscription", "subscription")(), " ", heading("Topic", "topic")()),
      formatter: (cell) => named(cell.getData().row),
    },
    number("Ranges", "ranges", (row) => el("span", { class: "cell" },
      sparkline(row.rangesHistory, row.rangesMax),
      el("span", {}, count(row.ranges), row.rangesMax ? el("span", { class: "dim" }, ` / ${count(row.rangesMax)}`) : "")),
      { minWidth: 150, widthGrow: 2, responsive: 1 }),
    number("Gate", "shuts-in", gate, { hozAlign: "left", minWidth: 110, widthGrow: 2, responsive: 1 }),
    number("Backlog", "backlog", (row) => count(row.backlog), { responsive: 2 }),
    number("Unacked", "unacked", (row) => count(row.unackedMessages), { responsive: 3 }),
    number("Again after a crash", "again", (row) => row.isOnFallback
      ? el("span", { class: "warn" }, `${count(row.comesAgain)}, fallback`)
      : el("span", { class: row.comesAgain ? "bad" : "dim" }, count(row.comesAgain)), { responsive: 2, minWidth: 110 }),
    number("Delayed, nacked", "delayed", (row) => `${count(row.delayed)}, ${count(row.nacks)}`, { responsive: 4, minWidth: 110 }),
    number("Consumers", "consumers", (row) => count(row.consumers), { responsive: 3 }),
  ];

  // On the page of the broker that has loaded it.
  function place(row) {
    const base = /^https?:\/\//.test(row.broker) ? `${row.broker}/` : "";
    return base + address("subscription", { topic: row.topic, name: row.subscription });
  }

  function named(row) {
    return el("div", { class: "named" },
      el("div", {}, badge(row.severity), " ",
        el("a", { href: place(row) }, row.subscription),
        el("span", { class: "dim" }, ` ${row.type ?? ""}`)),
      el("div", { class: "topic" }, row.topic.replace(/^persistent:\/\//, "")),
      row.why.map((sentence, place) => el("div", { class: place ? "why" : "why first" }, sentence)));
  }

  function gate(row) {
    if (row.shutSinceMs !== null) return el("span", { class: "bad" }, `shut for ${span(Date.now() - row.shutSinceMs)}`);
    if (row.shutsInSeconds !== null) return el("span", { class: "warn" }, `shuts in ${span(row.shutsInSeconds * 1000)}`);
    return el("span", { class: "dim" }, row.isGateEnabled ? "open" : "off");
  }

  let rows;

  function build() {
    rows = new Tabulator(holder, {
      index: "key", layout: "fitColumns", responsiveLayout: "hide", renderVertical: "basic",
      placeholder: "no subscription matches", columns: columns(),
      rowFormatter: (row) => { row.getElement().dataset.state = row.getData().row.severity; },
    });
    rows.on("rowDblClick", (_, row) => {
      location.href = place(row.getData().row);
    });
    return new Promise((resolve) => rows.on("tableBuilt", resolve));
  }

  let built = build();

  async function show(view) {
    await built;
    const data = view.rows.map((row) => ({ key: `${row.topic}\n${row.subscription}`, row }));
    const focused = document.activeElement?.closest("#rows a")?.getAttribute("href");
    const isSame = data.length === shown.length && data.every(({ key }, place) => key === shown[place]);
    if (isSame) for (const each of data) rows.getRow(each.key)?.update(each).then(() => rows.getRow(each.key)?.reformat());
    else await rows.replaceData(data);
    shown = data.map(({ key }) => key);
    if (focused) [...holder.querySelectorAll("a")].find((link) => link.getAttribute("href") === focused)?.focus();
    states.replaceChildren(...Object.entries(STATES).map(([name, word]) => el("button", {
      type: "button", class: `badge ${name}`, "aria-pressed": asked.state === name,
      onclick: () => change({ state: asked.state === name ? "" : name, offset: "0" }),
    }, `${count(view.severities[name])} ${word}`)));
    const first = view.matching ? view.offset + 1 : 0;
    summary.textContent = `${count(first)} to ${count(view.offset + view.rows.length)} of ${count(view.matching)}`
      + (view.matching === view.total ? "" : ` that match, ${count(view.total)} in all`)
      + ` · asked ${view.source.replace(/^https?:\/\//, "")}`;
    say(view.missing.length ? `not in it: ${view.missing.join("; ")}` : "");
    back.disabled = view.offset === 0;
    next.disabled = view.offset + view.rows.length >= view.matching;
    main.dataset.ready = String(view.takenMs);
  }

  function change(changed) {
    Object.assign(asked, changed);
    note("subscriptions", Object.fromEntries(Object.entries(asked).filter(([key, value]) => value !== DEFAULTS[key])));
    if ("order" in changed) {
      rows.destroy();
      shown = [];
      built = build();
    }
    listen();
  }

  function listen() {
    stop();
    delete main.dataset.ready;
    const query = new URLSearchParams({ ...asked, reversed: asked.reversed || "false", rows: String(ROWS) });
    if (!asked.state) query.delete("state");
    stop = follow(`ackgate/overview/events?${query}`, (view) => show(view).catch(reportError), (kind, why) => {
      state(kind, why);
      if (kind === "lost") say(why);
    });
  }

  listen();
  return () => { stop(); clearTimeout(typing); rows.destroy(); delete main.dataset.ready; };
}
