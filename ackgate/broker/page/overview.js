// All subscriptions, worst first. The broker filters, sorts and cuts; this shows one page of it, live.

import { FormatModule, ResizeTableModule, ResponsiveLayoutModule, Tabulator } from "./vendor/tabulator.js";
import { follow } from "./api.js";
import { STATES, badge, count, el, span, sparkline, typeOf } from "./dom.js";

Tabulator.registerModule([FormatModule, ResizeTableModule, ResponsiveLayoutModule]);

const ROWS = 50;

// So long a broker that was away may take to load its topics, which clients make it do.
const LOADING_MS = 30000;
const DEFAULTS = { text: "", state: "", order: "worst", reversed: "", offset: "0" };
const ASCENDING = ["topic", "subscription", "shuts-in"];

export function overview(main, given, { address, note, say, state }) {
  const asked = { ...DEFAULTS, ...Object.fromEntries(Object.entries(given).filter(([key]) => key in DEFAULTS)) };
  let shown = [], gone = null, before = null;
  let stop = () => {}, looking;

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

  const orders = {
    worst: "Worst", subscription: "Subscription", topic: "Topic", ranges: "Ranges", "shuts-in": "Gate", backlog: "Backlog",
    unacked: "Unacked", again: "Again after a crash", delayed: "Delayed, nacked", consumers: "Consumers",
  };
  const headings = Object.fromEntries(Object.entries(orders).map(([order, title]) => [order, el("button", {
    type: "button", class: "sort", "data-order": order,
    onclick: () => change({ order, reversed: asked.order === order && !asked.reversed ? "true" : "", offset: "0" }),
  }, title)]));
  // For narrow windows, whose rows have their figures below them and no headings.
  const order = el("select", { class: "narrow", "aria-label": "Order" },
    Object.entries(orders).map(([value, title]) => el("option", { value }, title)));
  order.addEventListener("change", () => change({ order: order.value, reversed: "", offset: "0" }));

  const figure = (field, cell, minWidth = 84, more = {}) => ({
    title: orders[field], titleFormatter: () => headings[field], field, hozAlign: "right", headerSort: false,
    minWidth, widthGrow: 1, responsive: 1, formatter: (shown) => cell(shown.getData().row, shown.getData().takenMs), ...more,
  });
  const columns = [
    {
      title: "Subscription", field: "subscription", headerSort: false, widthGrow: 7, minWidth: 260, responsive: 0,
      titleFormatter: () => el("span", {}, headings.worst, " ", headings.subscription, " ", headings.topic),
      formatter: (shown) => named(shown.getData().row),
    },
    figure("ranges", (row) => el("span", { class: "cell" },
      sparkline(row.rangesHistory, row.rangesMax),
      el("span", {}, count(row.ranges), row.rangesMax ? el("span", { class: "dim" }, ` / ${count(row.rangesMax)}`) : "")), 150, { widthGrow: 2 }),
    figure("shuts-in", gate, 110, { hozAlign: "left", widthGrow: 2 }),
    figure("backlog", (row) => count(row.backlog)),
    figure("unacked", (row) => count(row.unackedMessages)),
    figure("again", (row) => row.isOnFallback
      ? el("span", { class: "warn" }, `${count(row.comesAgain)}, fallback`)
      : el("span", { class: row.comesAgain ? "bad" : "dim" }, count(row.comesAgain)), 110),
    figure("delayed", (row) => `${count(row.delayed)}, ${count(row.nacks)}`, 110),
    figure("consumers", (row) => count(row.consumers)),
  ];
  const holder = el("div", { id: "rows" });
  main.append(
    el("div", { class: "bar" }, search, order, el("div", { class: "states", role: "group", "aria-label": "Filter by state" }, states)),
    holder,
    el("div", { class: "bar pager" }, previous, summary, next));

  // On the page of the broker that has loaded it.
  function place(row) {
    const base = /^https?:\/\//.test(row.broker) ? `${row.broker}/` : "";
    return base + address("subscription", { topic: row.topic, name: row.subscription });
  }

  function named(row) {
    return el("div", { class: "named" },
      el("div", {}, badge(row.severity), " ", el("a", { href: place(row) }, row.subscription), typeOf(row)),
      el("div", { class: "topic" }, row.topic.replace(/^persistent:\/\//, "")),
      row.why.map((sentence, place) => el("div", { class: place ? "why" : "why first" }, sentence)));
  }

  function gate(row, now) {
    if (row.shutSinceMs !== null) return el("span", { class: "bad" }, `shut for ${span(now - row.shutSinceMs)}`);
    if (row.shutsInSeconds !== null) return el("span", { class: "warn" }, `shuts in ${span(row.shutsInSeconds * 1000)}`);
    return el("span", { class: "dim" }, row.isGateEnabled ? "open" : "off");
  }

  const placeholder = el("span", {});
  const rows = new Tabulator(holder, {
    index: "key", layout: "fitColumns", renderVertical: "basic", placeholder, columns,
    responsiveLayout: "collapse", responsiveLayoutCollapseFormatter: figures,
    rowFormatter: (row) => { row.getElement().dataset.state = row.getData().row.severity; },
  });
  rows.on("rowDblClick", (_, row) => { location.href = place(row.getData().row); });
  const built = new Promise((resolve) => rows.on("tableBuilt", resolve));

  // What has no column of its own for want of width.
  function figures(columns) {
    return columns.length ? el("div", { class: "figures" }, columns.map(({ title, value }) => el("span", {}, el("span", { class: "dim" }, `${title} `), value))) : "";
  }

  // What a row shows, as text: a row is drawn again only when it differs.
  function drawn(row, takenMs) {
    return JSON.stringify(row) + gate(row, takenMs).textContent;
  }

  async function showRows(view) {
    await built;
    const data = view.rows.map((row) => ({
      key: `${row.topic}\n${row.subscription}`, drawn: drawn(row, view.takenMs), takenMs: view.takenMs, row,
    }));
    placeholder.textContent = before ? "the broker has not loaded these topics again yet" : view.total ? "no subscription matches" : "no loaded topic has a subscription yet";
    const active = document.activeElement;
    const focused = active === document.body ? gone : active?.closest("#rows a")?.getAttribute("href");
    const isSame = data.length === shown.length && data.every(({ key }, place) => key === shown[place].key);
    if (!isSame) await rows.replaceData(data);
    else {
      for (const [place, each] of data.entries()) {
        if (each.drawn === shown[place].drawn) continue;
        const row = rows.getRow(each.key);
        await row.update(each);
        row.reformat();
      }
    }
    shown = data;
    if (!focused) return;
    const link = [...holder.querySelectorAll("a")].find((each) => each.getAttribute("href") === focused);
    if (link && link !== document.activeElement) link.focus({ preventScroll: true });
    gone = link ? null : focused; // until it is there again: a broker that starts has not loaded every topic
  }

  async function show(view) {
    clearTimeout(looking);
    if (view.offset && !view.rows.length) {
      const loadingMs = before ? before.lostMs + LOADING_MS - Date.now() : 0;
      if (loadingMs <= 0) {
        change({ offset: String(Math.max(0, Math.ceil(view.matching / ROWS) - 1) * ROWS) });
        return;
      }
      looking = setTimeout(() => show(view).catch(reportError), loadingMs); // the broker sends only what is new
    }
    await showRows(view);
    if (before && (shown.length >= before.rows || Date.now() - before.lostMs > LOADING_MS)) {
      before = null;
      holder.style.minHeight = "";
    }
    for (const button of states) button.textContent = `${count(view.severities[button.dataset.state])} ${STATES[button.dataset.state]}`;
    const [first, last] = view.rows.length ? [view.offset + 1, view.offset + view.rows.length] : [0, 0];
    summary.textContent = `${count(first)} to ${count(last)} of ${count(view.matching)}`
      + (view.matching === view.total ? "" : ` that match, ${count(view.total)} in all`)
      + ` · asked ${view.source.replace(/^https?:\/\//, "")}`;
    say(view.missing.length ? `not in it: ${view.missing.join("; ")}` : "");
    previous.disabled = view.offset === 0;
    next.disabled = view.offset + view.rows.length >= view.matching;
    holder.removeAttribute("aria-busy");
    main.dataset.ready = String(view.takenMs);
  }

  // The list becomes short before it is whole again; what the reader has scrolled to stays where it is.
  function keepPlace() {
    before = { rows: before?.rows ?? shown.length, lostMs: Date.now() };
    holder.style.minHeight = `${holder.offsetHeight}px`;
  }

  function change(changed) {
    Object.assign(asked, changed);
    before = null;
    holder.style.minHeight = "";
    note("subscriptions", Object.fromEntries(Object.entries(asked).filter(([key, value]) => value !== DEFAULTS[key])));
    listen();
  }

  function listen() {
    stop();
    clearTimeout(looking);
    delete main.dataset.ready;
    holder.setAttribute("aria-busy", "true");
    for (const button of states) button.setAttribute("aria-pressed", asked.state === button.dataset.state);
    order.value = asked.order;
    for (const [name, button] of Object.entries(headings)) {
      const isIt = asked.order === name;
      button.setAttribute("aria-pressed", isIt);
      button.textContent = isIt ? `${orders[name]} ${ASCENDING.includes(name) === !asked.reversed ? "▲" : "▼"}` : orders[name];
    }
    const query = new URLSearchParams({ ...asked, reversed: asked.reversed || "false", rows: String(ROWS) });
    if (!asked.state) query.delete("state");
    stop = follow(`ackgate/overview/events?${query}`, (view) => show(view).catch(reportError), (kind, why) => {
      if (kind === "lost") keepPlace();
      state(kind, why);
    });
  }

  listen();
  return () => { stop(); clearTimeout(typing); clearTimeout(looking); rows.destroy(); delete main.dataset.ready; };
}
