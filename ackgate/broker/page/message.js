// One entry of a topic: its messages with key, properties and payload, and where it is for each subscription.

import { Refused, ask, repeat, topicPath } from "./api.js";
import { STATES_OF_ENTRIES, bytes, card, count, el, facts, moment, table } from "./dom.js";

export function message(main, given, { address, say, state }) {
  const topic = el("input", { type: "text", value: given.topic ?? "", placeholder: "persistent://tenant/namespace/topic", "aria-label": "Topic", required: true });
  const at = el("input", { type: "text", value: given.at ?? "", placeholder: "ledger:entry", "aria-label": "Position", required: true, pattern: "[0-9]+:[0-9]+" });
  const shown = el("div");
  const form = el("form", { class: "bar" }, topic, at, el("button", { class: "main" }, "Show"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    location.hash = address("message", { topic: topic.value.trim(), at: at.value.trim() });
  });
  main.append(form, shown);
  let stop = () => {};
  if (given.topic && given.at) {
    const [ledger, entry] = given.at.split(":");
    const full = given.topic.includes("/") ? given.topic : `public/default/${given.topic}`;
    const path = `ackgate/messages/${topicPath(full)}/${encodeURIComponent(ledger)}/${encodeURIComponent(entry ?? "")}`;
    stop = repeat(async (isLeft) => {
      let seen = null, why = "";
      try {
        seen = await ask(path);
      } catch (error) {
        if (!(error instanceof Refused) || error.status >= 500) throw error;
        why = error.message;
      }
      if (isLeft()) return;
      stop();
      state("");
      if (seen) show(seen, full);
      else say(why);
    }, state);
  }

  function show(seen, full) {
    const [ledger, entry] = seen.position.split(":").map(Number);
    const step = (to, text) => el("a", { href: address("message", { topic: full, at: `${ledger}:${to}` }) }, text);
    const places = Object.entries(seen.subscriptions);
    const isCut = !seen.messages[0]?.error && seen.messages.length < seen.messageCount;
    shown.replaceChildren(
      el("h1", {}, `Entry ${seen.position}`), el("p", { class: "bar" }, entry > 0 ? step(entry - 1, "← previous") : null, step(entry + 1, "next →")),
      el("div", { class: "cards" },
        card("Entry", facts(
          ["published", moment(seen.publishTimeMs)], ["producer", seen.producer], ["sequence id", count(seen.sequenceId)],
          ["size", bytes(seen.bytes)], ["messages", `${count(seen.messageCount)}${isCut ? `, the first ${count(seen.messages.length)} are shown` : ""}`], ["schema", seen.schema ?? "none"],
          seen.deliverAtMs ? ["deliver at", moment(seen.deliverAtMs)] : null,
          seen.chunk ? ["chunk", `${seen.chunk[0] + 1} of ${seen.chunk[1]}`] : null,
          seen.encryptionKeys.length ? ["encrypted for", seen.encryptionKeys.join(", ")] : null)),
        card(`Where it was at ${moment(Date.now())}`, el("div", { class: "tall" }, table(["subscription", "state"], places.map(([name, where]) => [
          el("a", { href: address("subscription", { topic: full, name }) }, name),
          where.holder === null ? STATES_OF_ENTRIES[where.state] : `with consumer ${where.holder}`,
        ]), "the topic has no subscription")),
          places.length < seen.subscriptionCount ? el("p", { class: "dim" }, `the first ${count(places.length)} of ${count(seen.subscriptionCount)} subscriptions are shown`) : null),
        seen.messages.map((each, place) => card(each.batchIndex === null || each.batchIndex === undefined ? "Message" : `Message ${each.batchIndex} of the batch`, body(each, place)))));
    main.dataset.ready = "shown";
  }

  function body(each) {
    if (each.error) return el("p", { class: "bad" }, each.error);
    const payload = each.payload;
    const rows = Object.entries(each.properties);
    return el("div", {},
      facts(["key", each.key ?? "none"], each.orderingKey ? ["ordering key (base64)", each.orderingKey] : null,
        each.eventTimeMs ? ["event time", moment(each.eventTimeMs)] : null, ["payload", payload === null ? "null" : bytes(payload.bytes)]),
      rows.length ? table(["property", "value"], rows) : null,
      payload === null ? null : el("pre", { tabindex: 0 }, payload.value ?? payload.text ?? payload.hex),
      payload?.isCut ? el("p", { class: "dim" }, "the beginning of it") : null);
  }

  return () => { stop(); delete main.dataset.ready; };
}
