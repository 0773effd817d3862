// Storage, and the broker with its cluster: two views that are asked for again every few seconds.

import { Unanswered, ask, repeat, topicPath } from "./api.js";
import { ago, bytes, card, count, el, facts, fill, span, table, wide } from "./dom.js";

function milliseconds(number) {
  return number === null ? "–" : `${number.toFixed(1)} ms`;
}

function again(main, take, { state }) {
  const stop = repeat(async (isLeft) => {
    await take(isLeft);
    if (!isLeft()) main.dataset.ready = String(Date.now());
  }, state);
  return () => { stop(); delete main.dataset.ready; };
}

const LEDGERS_SHOWN = 100, CURSORS_SHOWN = 200;

function of(shown, all) {
  return shown < all ? `${count(shown)} of ${count(all)}` : count(all);
}

function ledgersOf({ topic, broker, why, stats }, address) {
  const title = `Ledgers of ${topic.replace(/^persistent:\/\//, "")}`;
  if (stats === null) return card(title, el("p", { class: "bad" }, why));
  const ledgers = stats.ledgers.slice(-LEDGERS_SHOWN), cursors = Object.entries(stats.cursors).slice(0, CURSORS_SHOWN);
  return card(title,
    facts(["served by", broker.replace(/^https?:\/\//, "")], ["entries", count(stats.numberOfEntries)], ["size", bytes(stats.totalSize)],
      ["last entry", stats.lastConfirmedEntry], ["state", stats.state], ["adds under way", count(stats.pendingAddEntriesCount)],
      ["newest ledgers", of(ledgers.length, stats.ledgers.length)], ["cursors", of(cursors.length, Object.keys(stats.cursors).length)]),
    el("div", { class: "tall" }, table(["ledger", "entries", "size"], ledgers.map((ledger, place) => {
      const isOpen = place === ledgers.length - 1 && stats.state === "LedgerOpened";
      return [String(ledger.ledgerId), isOpen ? `${count(stats.currentLedgerEntries)}, open` : count(ledger.entries), bytes(isOpen ? stats.currentLedgerSize : ledger.size)];
    }))),
    el("div", { class: "tall" }, table(["cursor", "mark-delete", "reads at", "ranges", "cursor ledger"], cursors.map(([quoted, cursor]) => {
      const name = decodeURIComponent(quoted.replace(/\+/g, " "));
      return [el("a", { href: address("subscription", { topic, name }) }, name), cursor.markDeletePosition, cursor.readPosition,
        count(cursor.totalNonContiguousDeletedMessagesRange), cursor.cursorLedger < 0 ? "none" : String(cursor.cursorLedger)];
    }))));
}

// Of the broker, for superusers only.
function disksAndBookies(seen) {
  const audit = seen.audit;
  return [
    card("Disks",
      seen.refusal ? el("p", { class: "bad" }, seen.refusal) : null,
      table(["file system of", "free", ""], seen.disks.map((disk) => [disk.directory, bytes(disk.freeBytes), disk.isLow ? el("span", { class: "bad" }, "low") : ""]), "not watched"),
      facts(["messages on their way", bytes(seen.publishBufferBytes)], ["connections that wait for the disk", count(seen.waitingConnections)])),
    seen.cluster === null ? card("Bookies",
      table(["bookie", "state", "ledgers", "commits", "latest: mean", "longest", "damages", "directory"], seen.bookies.map((bookie) => [
        bookie.id,
        bookie.lastError ? el("span", { class: "bad" }, bookie.lastError) : bookie.isReadOnly ? el("span", { class: "warn" }, "read-only") : "well",
        count(bookie.ledgers), count(bookie.commits), milliseconds(bookie.commitMsMean), milliseconds(bookie.commitMsMax), count(bookie.damages),
        bookie.directory])),
      Object.keys(seen.absentBookies).length ? table(["absent", "why"], Object.entries(seen.absentBookies)) : null)
      : card("BookKeeper cluster", facts(["writable bookies", `${count(seen.cluster.writable)} of ${count(seen.cluster.known)}`]),
        table(["bookie", "adds", "mean add", "outstanding", "failed connections"], seen.cluster.bookies.map((bookie) => [
          bookie.id, count(bookie.adds), milliseconds(bookie.addMsMean), count(bookie.outstanding), count(bookie.connectionsFailed)]))),
    card("Auditor", audit.isWanted ? facts(
      ["last audit by this broker", ago(audit.lastRunMs, Date.now())], ["audits", count(audit.runs)], ["ledgers looked at", count(audit.last.ledgers)],
      ["with copies missing or damaged", count(audit.last.under_replicated_ledgers)], ["not repaired", count(audit.last.unmended_ledgers)],
      ["entries without a good copy", count(audit.last.lost_entries)], ["entries copied again so far", count(audit.all.repaired_entries)])
      : el("p", { class: "dim" }, "bookies look after themselves: AutoRecovery")),
  ];
}

export function storage(main, given, tools) {
  const topic = el("input", { type: "search", value: given.topic ?? "", placeholder: "ledgers of a topic", "aria-label": "Topic" });
  const form = el("form", { class: "bar" }, topic, el("button", {}, "Show its ledgers"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = tools.address("storage", { topic: topic.value.trim() });
  });
  const shown = el("div", { class: "cards" });
  main.append(form, shown);
  return again(main, async (isLeft) => {
    const full = given.topic && (given.topic.includes("/") ? given.topic : `public/default/${given.topic}`);
    const seen = await ask("ackgate/storage").catch((error) => {
      if (full && error.status === 403) return null;
      throw error;
    });
    const ledgers = full ? await ask(`ackgate/ledgers/${topicPath(full)}`).catch((error) => {
      if (error instanceof Unanswered) throw error;
      return { why: error.message, topics: [] };
    }) : null;
    if (isLeft()) return;
    fill(shown,
      ledgers?.why ? card(`Ledgers of ${full}`, el("p", { class: "bad" }, ledgers.why)) : null,
      (ledgers?.topics ?? []).map((each) => ledgersOf(each, tools.address)),
      seen ? disksAndBookies(seen) : null);
  }, tools);
}

export function broker(main, given, tools) {
  const search = el("input", { type: "search", value: given.text ?? "", placeholder: "setting   /", "aria-label": "Filter settings" });
  const shown = el("div", { class: "cards" });
  main.append(el("div", { class: "bar" }, search), shown);
  let last = null;
  search.addEventListener("input", () => {
    tools.note("broker", { text: search.value });
    if (last) show(...last);
  });

  function show(seen, now) {
    last = [seen, now];
    const text = search.value.toLowerCase();
    const settings = Object.entries(seen.settings).filter(([key]) => key.toLowerCase().includes(text));
    const without = Object.entries(seen.withoutEffect).filter(([key]) => key.toLowerCase().includes(text));
    const inForce = wide(card("Settings in force", el("div", { class: "tall" }, table(["key", "value"], settings.map(([key, value]) => [
      key in seen.changed ? el("span", { class: "warn" }, `${key} (changed at run time)`) : key, value]), "no setting matches"))));
    fill(shown,
      card("Brokers", table(["broker", "bundles", "up for", "clients connect to"], seen.brokers.map((each) => [
        each.id === seen.brokerId ? `${each.id} (this one)` : /^https?:/.test(each.webUrl) ? el("a", { href: each.webUrl, rel: "noreferrer" }, each.id) : each.id,
        count(each.bundles), each.startedMs ? span(now - each.startedMs) : "–", each.serviceUrl]))),
      card("Bundles", el("div", { class: "tall" }, table(["bundle", "owner"], seen.bundles.map((each) => [each.bundle, each.owner]), "none has an owner yet"))),
      card(`Connections: ${of(seen.busiest.length, seen.connections)}`, el("div", { class: "tall" }, table(["peer", "client", "role", "producers", "consumers"],
        seen.busiest.map((each) => [each.peer, each.client || "–", each.role ?? "–", count(each.producers), count(each.consumers)])))),
      card("Settings without effect", table(["key", "given in"], without, "every given key has its effect")),
      inForce);
  }

  return again(main, async (isLeft) => {
    const seen = await ask("ackgate/broker");
    if (!isLeft()) show(seen, Date.now());
  }, tools);
}
