"use strict";
// Draws each chart when it comes into view, and again when the scheme of colours changes.
const dark = matchMedia("(prefers-color-scheme: dark)");

function theme() {
  const style = getComputedStyle(document.documentElement);
  const [ink, quiet, lines] = ["--ink", "--quiet", "--line"].map((name) => style.getPropertyValue(name).trim());
  return {
    background: "transparent",
    font: "system-ui, sans-serif",
    view: { stroke: null },
    title: { color: ink, subtitleColor: quiet, anchor: "start", fontSize: 13 },
    axis: { labelColor: quiet, titleColor: quiet, gridColor: lines, domainColor: quiet, tickColor: quiet, titleFontWeight: "normal" },
    legend: { labelColor: quiet, orient: "bottom", titleColor: quiet, labelLimit: 240, titleLimit: 300, titleFontWeight: "normal" },
  };
}

function draw(figure) {
  const spec = JSON.parse(figure.querySelector("script").textContent);
  vegaEmbed(figure.querySelector("div"), spec, {
    config: theme(),
    renderer: "svg",
    ast: true, // the page forbids code that is made of text
    tooltip: { theme: dark.matches ? "dark" : "light" },
    actions: { export: true, source: false, compiled: false, editor: false },
  }).catch((error) => { figure.querySelector("div").textContent = String(error); });
}

const seen = new Set();
const watch = new IntersectionObserver((entries) => {
  for (const entry of entries) {
    if (entry.isIntersecting && !seen.has(entry.target)) {
      seen.add(entry.target);
      draw(entry.target);
    }
  }
}, { rootMargin: "600px" });
document.querySelectorAll("figure.chart").forEach((figure) => watch.observe(figure));
dark.addEventListener("change", () => seen.forEach(draw));
