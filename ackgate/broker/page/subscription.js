// One subscription: why it is stuck, its holes and who has them, the gate, persisting, its consumers.

import uPlot from "./vendor/uplot.js";
import { actions } from "./actions.js";
import { ask, follow, subscriptionPath } from "./api.js";
import { STATES_OF_ENTRIES, ago, badge, bytes, card, colour, count, el, facts, fill, moment, rate, span, table, typeOf, wide } from "./dom.js";
import { holes } from "./holes.js";

const RANGES_HEIGHT = 180, DUE_HEIGHT = 160;

function widthOf(box) {
  return Math.max(260, box.clientWidth);
}

// Times are UTC, as everywhere on the page.
function axes(size) {
  const line = { stroke: colour("dim"), grid: { stroke: colour("line") } };
  const clock = (_, splits, place, space, seconds) => splits.map((at) => {
    const [day, time] = new Date(at * 1000).toISOString().split("T");
    return seconds >= 86400 ? day.slice(5) : time.slice(0, seconds < 60 ? 8 : 5);
  });
  return [{ ...line, values: clock }, { ...line, size }];
}

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
  const oldest = card("Oldest holes", parts.oldest);
  main.append(
    el("p", { class: "crumbs" }, el("a", { href: address("subscriptions") }, "all subscriptions"), " / ",
      el("a", { href: address("subscriptions", { text: topic }) }, topic)),
    head,
    actions(topic, name, { say }),
    el("div", { class: "cards" },
      card("Holes", picture.box),
      oldest,
      card("Ack ranges", chart),
      card("Delivery", parts.delivery),
      card("Gate", parts.gate),
      card("Persisting", parts.persisting),
      wide(card("Consumers", parts.consumers)),
      wide(card("What waits", parts.held, waiting, due))));
  let plot = null, bars = null, row = null, sampled = null;

  function show(view) {
    const { stats } = view, now = view.takenMs, store = stats.ackState.store;
    row = view.row;
    fill(head,
      el("h1", {}, badge(row.severity), " ", row.subscription, typeOf(row)),
      ...(row.why.length ? row.why.map((sentence, place) => el("p", { class: place ? "why" : "why first" }, sentence))
        : [el("p", { class: "why good" }, "nothing is wrong")]));
    picture.show(view.picture);
    oldest.classList.toggle("long", view.holes.length > 6);
    fill(parts.oldest,
      table(["first entry", "entries", "who has it", "since"], view.holes.map((hole) => [
        el("a", { href: address("message", { topic, at: hole.first }) }, hole.first), count(hole.entries), hole.holder === null ? STATES_OF_ENTRIES[hole.state] : `consumer ${hole.holder}`,
        hole.sinceMs ? `${span(now - hole.sinceMs)}` : "–",
      ]), "no unacked entry was delivered"),
      view.holders.length ? el("p", { class: "dim" }, "Longest held: " + view.holders.map(
        (held) => `${held.first} by ${held.consumer} for ${span(now - held.sinceMs)}`).slice(0, 10).join("; ")) : "");
    drawRanges();
    const cursor = stats.ackState.cursor;
    fill(parts.delivery, facts(
      ["backlog", count(stats.msgBacklog)], ["unacked", count(stats.unackedMessages)],
      ["to replay", count(stats.msgInReplay)], ["delivered", rate(stats.msgRateOut)],
      ["acked", rate(stats.messageAckRate)], ["delivered again", rate(stats.msgRateRedeliver)],
      ["mark-delete", cursor.markDelete], ["reads at", cursor.readPosition], ["last entry", cursor.lastConfirmed],
      ["mark-delete moved", ago(stats.lastMarkDeleteAdvancedTimestamp, now)],
      ["last delivery", ago(stats.lastConsumedTimestamp, now)], ["last ack", ago(stats.lastAckedTimestamp, now)]));
    fill(parts.consumers, table(
      ["name", "address", "permits", "unacked", "out", "acked", "again", "last ack", ""],
      stats.consumers.slice(0, 200).map((each) => [
        each.consumerName, each.address.replace(/^\//, ""), count(each.availablePermits), count(each.unackedMessages),
        rate(each.msgRateOut), rate(each.messageAckRate), rate(each.msgRateRedeliver), ago(each.lastAckedTimestamp, now),
        each.blockedConsumerOnUnackedMsgs ? el("span", { class: "warn" }, "blocked") : "",
      ]), "no consumer is connected"));
    const gate = stats.ackState.gate;
    fill(parts.gate,
      facts(
        ["now", gate.isOpen ? (gate.isEnabled ? "open" : "off") : `shut since ${moment(gate.shutSinceMs)}`],
        ["mode", gate.isStrict ? "strict" : "Pulsar's"], ["limit", `${count(gate.rangesMax)} ranges`],
        ["resumes at", `${count(gate.resumeMark)} ranges`],
        gate.budgetEntries === null ? null : ["budget", `${count(gate.budgetEntries)} entries`],
        ["forecast", row.shutsInSeconds === null || !gate.isOpen ? "–" : `shuts in ${span(row.shutsInSeconds * 1000)}`],
        ["times shut", count(gate.shutCount)]),
      table(["shut", "for", "reasons"], [...view.pauses].reverse().slice(0, 12).map((pause) => [
        moment(pause.sinceMs), pause.untilMs === null ? `${span(now - pause.sinceMs)}, still` : span(pause.untilMs - pause.sinceMs),
        pause.reasons.join(", "),
      ]), "it never shut since the topic was loaded"));
    fill(parts.persisting, store === null
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
    fill(parts.held, facts(
      ["delayed", count(held.delayedEntries)], ["index", bytes(held.delayedBytes)], ["tracker", held.tracker || "none yet"],
      ["nacks", count(stats.delayed.nacks.pending)], ["nacks durable", count(stats.delayed.nacks.persisted)],
      ["next due", held.nextDeadlineMs === null ? "–" : held.nextDeadlineMs <= now ? "now" : `in ${span(held.nextDeadlineMs - now)}`],
      buckets === null ? null : ["buckets", `${count(buckets.buckets)}, ${bytes(buckets.snapshotBytes)} of snapshots`],
      buckets === null ? null : ["buckets in work", `${count(buckets.bucketsStoring)} stored, ${count(buckets.bucketsMerging)} merged, ${count(buckets.bucketsUnread)} to be read`],
      buckets === null ? null : ["buckets failing", count(buckets.bucketsFailing)]));
    waiting.disabled = !held.delayedEntries;
    main.dataset.ready = String(now);
  }

  function drawRanges() {
    const points = row.rangesHistory;
    if (points.length < 2) {
      plot?.destroy();
      plot = null;
      chart.replaceChildren(el("p", { class: "dim" }, points.length ? "a history begins" : "there were no ack ranges in the last hour"));
      return;
    }
    const data = [points.map(([at]) => at / 1000), points.map(([, value]) => value), points.map(() => row.rangesMax)];
    if (plot !== null) {
      const [times] = plot.data, { min, max } = plot.scales.x;
      const isZoomed = min > times[0] || max < times[times.length - 1];
      plot.setData(data, !isZoomed);
      if (isZoomed) plot.setScale("x", { min, max });
      return;
    }
    chart.replaceChildren();
    plot = new uPlot({
      width: widthOf(chart), height: RANGES_HEIGHT,
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high * 1.05)] } },
      axes: axes(60),
      series: [{ value: (_, at) => moment(at * 1000) },
        { label: "ranges", stroke: colour("accent"), width: 2, fill: colour("accent-weak") },
        { label: "limit", stroke: colour("bad"), dash: [6, 4] }],
    }, data, chart);
  }

  // On demand: the broker reads some of the delayed messages for it.
  async function dueTimes() {
    sampled = await ask(`${subscriptionPath(topic, name)}/dueTimes`);
    say("");
    drawDue();
  }

  function drawDue() {
    bars?.destroy();
    bars = null;
    if (sampled === null) return;
    if (!sampled.counts.length) {
      due.replaceChildren(el("p", { class: "dim" }, "no delayed message waits"));
      return;
    }
    const slot = sampled.slotMs / 1000;
    const edges = sampled.counts.map((_, place) => sampled.firstMs / 1000 + place * slot);
    due.replaceChildren(el("p", { class: "dim" }, `${count(sampled.sampled)} of ${count(sampled.held)} delayed entries, by due time; a bar is ${span(sampled.slotMs)}`));
    bars = new uPlot({
      width: widthOf(due), height: DUE_HEIGHT, legend: { show: false },
      scales: { y: { range: (_, low, high) => [0, Math.max(1, high)] }, x: { range: (_, low, high) => [low - slot, high + slot] } },
      axes: axes(50),
      series: [{}, { label: "entries", stroke: colour("delayed"), fill: colour("accent-weak"), paths: uPlot.paths.bars({ size: [0.9, 100] }), points: { show: false } }],
    }, [edges, sampled.counts], due);
  }

  function redraw() {
    plot?.destroy();
    plot = null;
    if (row !== null) drawRanges();
    drawDue();
  }

  function resize() {
    plot?.setSize({ width: widthOf(chart), height: RANGES_HEIGHT });
    bars?.setSize({ width: widthOf(due), height: DUE_HEIGHT });
  }

  document.addEventListener("themed", redraw);
  window.addEventListener("resize", resize);
  const stop = follow(`${subscriptionPath(topic, name)}/events?cells=256`, show, state);
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
