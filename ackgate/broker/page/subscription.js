// One subscription: why it is stuck, its holes and who has them, the gate, persisting, its consumers.

import uPlot from "./vendor/uplot.js";
import { actions } from "./actions.js";
import { ask, follow, subscriptionPath } from "./api.js";
import { STATES_OF_ENTRIES, ago, badge, bytes, card, count, el, facts, moment, rate, span, table } from "./dom.js";
import { holes } from "./holes.js";

const SLOTS_HEIGHT = 160;

export function subscription(main, given, { address, note, say, state }) {
  const { topic = "", name = "" } = given;
  const window0 = given.ledger === undefined ? null
    : { ledger: Number(given.ledger), from: Number(given.from), to: Number(given.to) };
  const picture = holes(topic, name, window0, (shown) =>
    note("subscription", { topic, name, ...(shown ?? {}) }));
  const head = el("div", { class: "head" });
  const chart = el("div", { class: "chart" });
  const due = el("div", { class: "chart" });
  const waiting = el("button", { type: "button", onclick: () => dueTimes().catch((error) => say(error.message)) }, "When are they due?");
  const parts = Object.fromEntries(
    ["delivery", "oldest", "gate", "persisting", "consumers", "held"].map((part) => [part, el("div")]));
  main.append(
    el("p", { class: "crumbs" }, el("a", { href: address("subscriptions") }, "all subscriptions"), " / ",
      el("a", { href: address("subscriptions", { text: topic }) }, topic)),
    head,
    actions(topic, name, { say }),
    el("div", { class: "cards" },
      card("Holes", picture.box),
      card("Oldest holes", parts.oldest),
      card("Ack ranges", chart),
      card("Delivery", parts.delivery),
      card("Consumers", parts.consumers),
      card("Gate", parts.gate),
      card("Persisting", parts.persisting),
      card("What waits", parts.held, waiting, due)));
  let plot = null, bars = null;

  function show(view) {
    const { row, stats } = view, now = view.takenMs, store = stats.ackState.store;
    head.replaceChildren(
      el("h1", {}, badge(row.severity), " ", row.subscription, " ", el("span", { class: "dim" }, row.type ?? "")),
      ...(row.why.length ? row.why.map((sentence, place) => el("p", { class: place ? "why" : "why first" }, sentence))
        : [el("p", { class: "why good" }, "nothing is wrong")]));
    picture.show(view.picture);
    parts.oldest.replaceChildren(
      table(["first entry", "entries", "who has it", "since"], view.holes.map((hole) => [
        el("a", { href: address("message", { topic, at: hole.first }) }, hole.first), count(hole.entries), hole.holder === null ? STATES_OF_ENTRIES[hole.state] : `consumer ${hole.holder}`,
        hole.sinceMs ? `${span(now - hole.sinceMs)}` : "–",
      ]), "no unacked entry was delivered"),
      view.holders.length ? el("p", { class: "dim" }, "Longest held: " + view.holders.map(
        (held) => `${held.first} by ${held.consumer} for ${span(now - held.sinceMs)}`).slice(0, 10).join("; ")) : "");
    ranges(row);
    const cursor = stats.ackState.cursor;
    parts.delivery.replaceChildren(facts(
      ["backlog", count(stats.msgBacklog)], ["unacked", count(stats.unackedMessages)],
      ["to replay", count(stats.msgInReplay)], ["delivered", rate(stats.msgRateOut)],
      ["acked", rate(stats.messageAckRate)], ["delivered again", rate(stats.msgRateRedeliver)],
      ["mark-delete", cursor.markDelete], ["reads at", cursor.readPosition], ["last entry", cursor.lastConfirmed],
      ["mark-delete moved", ago(stats.lastMarkDeleteAdvancedTimestamp, now)],
      ["last delivery", ago(stats.lastConsumedTimestamp, now)], ["last ack", ago(stats.lastAckedTimestamp, now)]));
    parts.consumers.replaceChildren(table(
      ["name", "address", "permits", "unacked", "out", "acked", "again", "last ack", ""],
      stats.consumers.slice(0, 200).map((each) => [
        each.consumerName, each.address.replace(/^\//, ""), count(each.availablePermits), count(each.unackedMessages),
        rate(each.msgRateOut), rate(each.messageAckRate), rate(each.msgRateRedeliver), ago(each.lastAckedTimestamp, now),
        each.blockedConsumerOnUnackedMsgs ? el("span", { class: "warn" }, "blocked") : "",
      ]), "no consumer is connected"));
    const gate = stats.ackState.gate;
    parts.gate.replaceChildren(
      facts(
        ["now", gate.isOpen ? (gate.isEnabled ? "open" : "off") : `shut since ${moment(gate.shutSinceMs)}`],
        ["mode", gate.isStrict ? "strict" : "Pulsar's"], ["limit", `${count(gate.rangesMax)} ranges`],
        ["resumes at", `${count(gate.resumeMark)} ranges`],
        gate.budgetEntries === null ? null : ["budget", `${count(gate.budgetEntries)} entries`],
        ["forecast", row.shutsInSeconds === null || !gate.isOpen ? "–" : `shuts in ${span(row.shutsInSeconds * 1000)}`],
        ["shut so far", `${count(gate.shutCount)} times`]),
      table(["shut", "for", "reasons"], [...view.pauses].reverse().slice(0, 12).map((pause) => [
        moment(pause.sinceMs), pause.untilMs === null ? `${span(now - pause.sinceMs)}, still` : span(pause.untilMs - pause.sinceMs),
        pause.reasons.join(", "),
      ]), "it never shut since the topic was loaded"));
    parts.persisting.replaceChildren(store === null
      ? el("p", { class: "dim" }, "of a reader: nothing is kept")
      : facts(
        ["persisted", `${count(stats.ackState.rangesPersisted)} of ${count(stats.ackState.rangesLive)} ranges`],
        ["again after a crash", count(stats.ackState.entriesDropped + stats.ackState.batchIndexesDropped)],
        ["changes not durable yet", count(store.dirtyVersions)], ["receipts waiting", count(store.receiptsWaiting)],
        ...(store.outcome === null ? [["last write", "none yet"]] : [
          ["last write", `${ago(store.outcome.atMs, now)}: ${store.outcome.isDelta ? "delta" : "snapshot"}`],
          ["to", `${store.outcome.where === "ledger" ? "the cursor's ledger" : "its metadata node"}`],
          ["size", bytes(store.outcome.bytesWritten)], ["took", `${store.outcome.durationMs.toFixed(1)} ms`]]),
        ["cursor ledger", store.cursorLedgerId === null ? "none" : `${store.cursorLedgerId}, last entry ${store.cursorLedgerLastEntry}`],
        ["writes", `${count(store.ledgerWrites)} to the ledger, ${count(store.metadataWrites)} to the node`],
        ["failures", `${count(store.ledgerErrors)} and ${count(store.metadataErrors)}`],
        store.isOnFallback ? ["fallback", el("span", { class: "warn" }, "the ledger fails")] : null,
        store.lastFailure ? ["last failure", el("span", { class: "bad" }, store.lastFailure)] : null));
    const held = stats.delayed.held, buckets = stats.delayed.buckets;
    parts.held.replaceChildren(facts(
      ["delayed", count(held.delayedEntries)], ["index", bytes(held.delayedBytes)], ["tracker", held.tracker || "none yet"],
      ["nacks", count(stats.delayed.nacks.pending)], ["nacks durable", count(stats.delayed.nacks.persisted)],
      ["next due", held.nextDeadlineMs === null ? "–" : held.nextDeadlineMs <= now ? "now" : `in ${span(held.nextDeadlineMs - now)}`],
      buckets === null ? null : ["buckets", `${count(buckets.buckets)}, ${bytes(buckets.snapshotBytes)} of snapshots`],
      buckets === null ? null : ["buckets in work", `${count(buckets.bucketsStoring)} stored, ${count(buckets.bucketsMerging)} merged, ${count(buckets.bucketsUnread)} to be read`],
      buckets === null ? null : ["buckets failing", count(buckets.bucketsFailing)]));
    waiting.disabled = !held.delayedEntries;
    main.dataset.ready = String(now);
  }

  function ranges(row) {
    const points = row.rangesHistory;
    if (points.length < 2) {
      plot?.destroy();
      plot = null;
      chart.replaceChildren(el("p", { class: "dim" }, points.length ? "a history begins" : "there were no ack ranges in the last hour"));
      return;
    }
    const data = [points.map(([at]) => at / 1000), points.map(([, value]) => value), points.map(() => row.rangesMax)];
    if (plot !== null) {
      plot.setData(data);
      return;
    }
    const style = getComputedStyle(document.documentElement);
    const line = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line") } };
    chart.replaceChildren();
    plot = new uPlot({
      width: Math.max(260, chart.clientWidth), height: 180,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
      axes: [line, { ...line, size: 60 }],
      series: [{}, { label: "ranges", stroke: style.getPropertyValue("--accent"), width: 2, fill: style.getPropertyValue("--accent-weak") },
        { label: "limit", stroke: style.getPropertyValue("--bad"), dash: [6, 4] }],
    }, data, chart);
  }

  // On demand: the broker reads some of the delayed messages for it.
  async function dueTimes() {
    const seen = await ask(`${subscriptionPath(topic, name)}/dueTimes`);
    bars?.destroy();
    bars = null;
    if (!seen.counts.length) {
      due.replaceChildren(el("p", { class: "dim" }, "no delayed message waits"));
      return;
    }
    const style = getComputedStyle(document.documentElement);
    const axis = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line") } };
    const edges = seen.counts.map((_, place) => (seen.firstMs + place * seen.slotMs) / 1000);
    due.replaceChildren(el("p", { class: "dim" }, `${count(seen.sampled)} of ${count(seen.held)} delayed entries, by due time; a bar is ${span(seen.slotMs)}`));
    bars = new uPlot({
      width: Math.max(260, due.clientWidth), height: SLOTS_HEIGHT, legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] }, x: { range: (_, low, high) => [low - seen.slotMs / 1000, high + seen.slotMs / 1000] } },
      axes: [axis, { ...axis, size: 50 }],
      series: [{}, { label: "entries", stroke: style.getPropertyValue("--delayed"), fill: style.getPropertyValue("--accent-weak"), paths: uPlot.paths.bars({ size: [0.9, 100] }), points: { show: false } }],
    }, [edges, seen.counts], due);
  }

  const redraw = () => { plot?.destroy(); plot = null; };
  const resize = () => plot?.setSize({ width: Math.max(260, chart.clientWidth), height: 180 });
  document.addEventListener("themed", redraw);
  window.addEventListener("resize", resize);
  const stop = follow(`${subscriptionPath(topic, name)}/events?cells=256`, (view) => { say(""); show(view); }, (kind, why) => {
    state(kind, why);
    if (kind === "lost") say(why);
  });
  return () => {
    stop();
    picture.end();
    plot?.destroy();
    bars?.destroy();
    document.removeEventListener("themed", redraw);
    window.removeEventListener("resize", resize);
    delete main.dataset.ready;
  };
}
