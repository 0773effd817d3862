// The holes of a subscription: each ledger as a strip, and a window of one ledger that can be moved.
//
// A cell of a strip says how much of its slice is acked: empty only if nothing is, full only if everything
// is. A window of up to 1,024 entries shows each entry, and which consumer has it.

import { ask, subscriptionPath } from "./api.js";
import { STATES_OF_ENTRIES as WORDS, colour, count, el, table } from "./dom.js";

const FULL = 1000;
const WINDOW_MAX = 1024;
const HOLDERS = 6;

function canvas(height, label) {
  return el("canvas", { height, width: 640, role: "img", "aria-label": label, tabindex: 0 });
}

// Sizes the bitmap to the element, and returns its context and width in CSS pixels.
function prepared(drawn) {
  const width = Math.max(100, drawn.clientWidth), scale = devicePixelRatio || 1;
  const height = drawn.clientHeight;
  drawn.width = Math.round(width * scale);
  drawn.height = Math.round(height * scale);
  const context = drawn.getContext("2d");
  context.scale(scale, scale);
  context.clearRect(0, 0, width, height);
  return [context, width, height];
}

function drawCells(drawn, cells) {
  const [context, width, height] = prepared(drawn);
  context.fillStyle = colour("hole");
  context.fillRect(0, 0, width, height);
  context.fillStyle = colour("acked");
  cells.forEach((cell, place) => {
    if (!cell) return;
    const left = (place * width) / cells.length, right = ((place + 1) * width) / cells.length;
    const tall = cell === FULL ? height : Math.max(2, Math.min(height - 3, (cell / FULL) * height));
    context.fillRect(left, height - tall, right - left, tall);
  });
}

export function holes(topic, name, start, onWindow) {
  let picture = null, shownWindow = start, seen = null, holders = [];
  const strips = el("div", { class: "strips" });
  const wrong = el("p", { class: "bad", role: "alert" });
  const detail = el("div", { class: "window" });
  const box = el("div", {}, legend(), strips, wrong, detail);

  function legend() {
    return el("p", { class: "legend" },
      el("span", { class: "key acked" }), "acked (as high as its share of the slice) ",
      el("span", { class: "key hole" }), "not acked. ",
      "Click or drag over a ledger to look closer.");
  }

  function show(next) {
    picture = next;
    const wanted = picture.ledgers.map((ledger) => String(ledger.ledgerId)).join();
    if (strips.dataset.ledgers !== wanted) {
      strips.dataset.ledgers = wanted;
      const focused = document.activeElement?.closest(".strip")?.dataset.ledger;
      strips.replaceChildren(...picture.ledgers.map(strip));
      strips.querySelector(`[data-ledger="${focused}"] canvas`)?.focus({ preventScroll: true });
      if (picture.ledgersOmitted) strips.append(el("p", { class: "dim" }, `and ${count(picture.ledgersOmitted)} later ledgers`));
    }
    draw();
    if (shownWindow) refresh();
  }

  function strip(ledger) {
    const drawn = canvas(22, `ledger ${ledger.ledgerId}`);
    let from = null;
    const place = (event) => {
      const { left, width } = drawn.getBoundingClientRect();
      return Math.min(1, Math.max(0, (event.clientX - left) / width));
    };
    const entries = () => picture.ledgers.find((each) => each.ledgerId === ledger.ledgerId)?.entries ?? ledger.entries;
    drawn.addEventListener("pointerdown", (event) => { from = place(event); drawn.setPointerCapture(event.pointerId); });
    drawn.addEventListener("pointerup", (event) => {
      if (from === null) return;
      const [low, high] = [from, place(event)].sort((a, b) => a - b), all = entries();
      from = null;
      if (high - low > 0.01) look(ledger.ledgerId, Math.floor(low * all), Math.ceil(high * all));
      else around(ledger.ledgerId, Math.floor(low * all), all);
    });
    drawn.addEventListener("keydown", (event) => {
      if (event.key === "Enter") around(ledger.ledgerId, 0, entries());
    });
    return el("div", { class: "strip", "data-ledger": ledger.ledgerId },
      el("span", { class: "id" }, `ledger ${ledger.ledgerId}`), drawn, el("span", { class: "figures dim" }));
  }

  function draw() {
    [...strips.querySelectorAll(".strip")].forEach((row, place) => {
      const ledger = picture.ledgers[place];
      drawCells(row.querySelector("canvas"), ledger.cells);
      row.querySelector(".figures").textContent =
        `${count(ledger.acked)} of ${count(ledger.entries)} acked, ${count(ledger.ranges)} ranges`;
    });
  }

  function around(ledger, entry, all) {
    const width = Math.min(all, 256);
    const first = Math.max(0, Math.min(entry - width / 2, all - width));
    look(ledger, Math.floor(first), Math.floor(first + width));
  }

  function look(ledger, from, to) {
    shownWindow = { ledger: Number(ledger), from: Math.max(0, from), to: Math.max(from + 1, to) };
    onWindow(shownWindow);
    refresh();
  }

  async function refresh() {
    const asked = shownWindow, { ledger, from, to } = asked;
    try {
      const answer = await ask(`${subscriptionPath(topic, name)}/holes/${ledger}?from=${from}&to=${to}&cells=512`);
      if (shownWindow !== asked) return; // moved or closed meanwhile
      seen = answer;
    } catch (error) {
      if (shownWindow === asked) fail(`Entries ${count(from)} to ${count(to - 1)} of ledger ${ledger}: ${error.message}`);
      return;
    }
    fail("");
    drawWindow();
  }

  // The entries that were shown before stay, visibly old.
  function fail(why) {
    detail.toggleAttribute("data-old", why !== "");
    if (wrong.dataset.why === why) return;
    wrong.dataset.why = why;
    wrong.replaceChildren(...(why ? [why, " ", button("×", "Close", close)] : []));
  }

  function button(text, title, act) {
    return el("button", { type: "button", title, "aria-label": title, onclick: act }, text);
  }

  function drawWindow() {
    const { ledgerId: ledger, start: from } = seen;
    holders = [...new Set((seen.runs ?? []).map((run) => run.holder).filter((holder) => holder !== null))];
    const drawn = canvas(44, `entries ${seen.start} to ${seen.stop - 1} of ledger ${ledger}`);
    const width = seen.stop - seen.start, all = seen.ledgerEntries;
    const move = (by) => {
      const first = Math.max(0, Math.min(from + Math.round(by * width), all - width));
      look(ledger, first, first + width);
    };
    const zoom = (by) => {
      const middle = (seen.start + seen.stop) / 2, next = Math.min(all, Math.max(8, width * by));
      const first = Math.max(0, Math.min(Math.round(middle - next / 2), all - Math.round(next)));
      look(ledger, first, first + Math.round(next));
    };
    drawn.addEventListener("keydown", (event) => {
      const act = { ArrowLeft: () => move(-0.5), ArrowRight: () => move(0.5), "+": () => zoom(0.5), "-": () => zoom(2), Escape: close }[event.key];
      if (act) { event.preventDefault(); act(); }
    });
    drawn.addEventListener("wheel", (event) => { if (event.ctrlKey) { event.preventDefault(); zoom(event.deltaY > 0 ? 1.5 : 0.67); } }, { passive: false });
    const focusable = () => [...detail.querySelectorAll("button, canvas, summary")];
    const focused = focusable().indexOf(document.activeElement);
    const isOpen = detail.querySelector("details")?.open;
    detail.replaceChildren(
      el("div", { class: "bar" },
        el("strong", {}, `ledger ${ledger}, entries ${count(seen.start)} to ${count(seen.stop - 1)} of ${count(all)}`),
        el("span", { class: "together" },
          button("←", "Earlier", () => move(-0.5)), button("→", "Later", () => move(0.5)),
          button("+", "Closer", () => zoom(0.5)), button("−", "Wider", () => zoom(2)), button("×", "Close", close))),
      drawn,
      el("p", { class: "legend" }, seen.runs === null
        ? `Up to ${count(WINDOW_MAX)} entries are shown one by one.`
        : keys(seen.runs)),
      seen.runs === null ? null : list(seen.runs, isOpen));
    focusable()[focused]?.focus({ preventScroll: true });
    if (seen.runs === null) drawCells(drawn, seen.cells);
    else drawRuns(drawn, seen);
  }

  function colourOf(run) {
    if (run.state !== "held") return colour(run.state);
    return colour(`holder-${holders.indexOf(run.holder) % HOLDERS}`);
  }

  function drawRuns(drawn, seen) {
    const [context, width, height] = prepared(drawn);
    const each = width / (seen.stop - seen.start);
    for (const run of seen.runs) {
      context.fillStyle = colourOf(run);
      const gap = each > 6 ? 1 : 0;
      for (let entry = 0; entry < (gap ? run.entries : 1); entry++) {
        const left = (run.first - seen.start + entry) * each;
        context.fillRect(left, 0, (gap ? each : each * run.entries) - gap, height);
      }
    }
  }

  function keys(runs) {
    const seen = new Map();
    for (const run of runs) {
      const word = run.state === "held" ? `with ${run.holder}` : WORDS[run.state];
      seen.set(word, { run, entries: (seen.get(word)?.entries ?? 0) + run.entries });
    }
    return [...seen].flatMap(([word, { run, entries }]) => {
      const kind = run.state === "held" ? `holder-${holders.indexOf(run.holder) % HOLDERS}` : run.state;
      return [el("span", { class: `key ${kind}` }), `${word} (${count(entries)}) `];
    });
  }

  function list(runs, isOpen) {
    const open = runs.filter((run) => run.state !== "acked").slice(0, 12);
    return el("details", { open: isOpen }, el("summary", {}, "Unacked runs of this window"),
      table(["entries", "where"], open.map((run) => [
        run.entries === 1 ? String(run.first) : `${run.first} to ${run.first + run.entries - 1}`,
        run.holder === null ? WORDS[run.state] : `with consumer ${run.holder}`,
      ])));
  }

  function close() {
    shownWindow = seen = null;
    onWindow(null);
    fail("");
    detail.replaceChildren();
  }

  const redraw = () => {
    if (picture) draw();
    if (seen) drawWindow();
  };
  window.addEventListener("resize", redraw);
  document.addEventListener("themed", redraw);
  return {
    box, show,
    end: () => { window.removeEventListener("resize", redraw); document.removeEventListener("themed", redraw); },
  };
}
