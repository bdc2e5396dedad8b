// What attacks and audits found: the verdict in a sentence, and the curves it rests on.

import { plot, responsive } from "./charts.js";
import { el } from "./dom.js";
import { moment } from "./format.js";

const LOWEST_RATE = 1e-4;

export function verdictPanel({ name, time, report, pictures }) {
  const kind = report.convicted ? "convicted" : report.inconclusive ? "inconclusive" : "acquitted";
  const tag = { convicted: "tag bad", inconclusive: "tag warn", acquitted: "tag good" }[kind];
  const drawn = report.roc ? rocPlots(report.roc) : (pictures ?? []).map(picture);
  return el(
    "article",
    { class: `verdict ${kind}` },
    el("p", { class: "note" }, el("span", { class: tag }, kind === "acquitted" ? "not convicted" : kind), ` dpserve ${name.replace("-", " ")} · ${moment(time)}`),
    el("h3", {}, report.title),
    el("p", {}, report.verdict),
    (report.warnings ?? []).map((warning) => el("p", { class: "notice" }, warning)),
    el("div", { class: "plots" }, drawn),
    (report.notes ?? []).length > 0 &&
      el("details", {}, el("summary", {}, "Notes"), el("ul", {}, report.notes.map((note) => el("li", {}, note)))),
  );
}

function picture({ title, caption, png }) {
  const bytes = Uint8Array.from(atob(png), (character) => character.charCodeAt(0));
  const url = URL.createObjectURL(new Blob([bytes], { type: "image/png" }));
  const image = el("img", { src: url, alt: title });
  image.addEventListener("load", () => URL.revokeObjectURL(url), { once: true });
  return el("figure", {}, image, el("figcaption", {}, caption));
}

function figureOf(draw, title, caption) {
  const host = el("div", {});
  responsive(host, draw);
  return el("figure", {}, el("h4", {}, title), host, el("figcaption", {}, caption));
}

function rocPlots(roc) {
  const rates = roc.false_positive_rates;
  const [best, ...others] = roc.attacks;
  const summary = `ROC of ${best.attack}, ${others.length} more, and the curve that the claim does not let them cross.`;
  const curves = (at) => [
    { points: at(rates, rates), kind: "chance" },
    { points: at(rates, roc.bound), kind: "limit bound" },
    ...others.map((one) => ({ points: at(rates, one.true_positive_rates), kind: "other" })),
    { points: at(rates, best.true_positive_rates), kind: "measured" },
  ];
  const shares = [0, 0.25, 0.5, 0.75, 1].map((value) => ({ value, text: String(value) }));
  const powers = [-4, -3, -2, -1, 0].map((value) => ({ value, text: String(10 ** value) }));
  const straight = (xs, ys) => xs.map((x, place) => [x, ys[place]]);
  const logged = (xs, ys) => straight(xs, ys).filter(([x]) => x >= LOWEST_RATE).map(([x, y]) => [Math.log10(x), Math.log10(Math.max(y, LOWEST_RATE))]);
  const labels = { xLabel: "false positive rate", yLabel: "true positive rate", summary };
  const legend = `Thick: ${best.attack}, the attack that counts${others.length ? "; thin: others" : ""}. Dashed: what the claim allows. Dotted: guessing.`;
  return [
    figureOf(plot({ ...labels, xTicks: shares, yTicks: shares, curves: curves(straight) }), "ROC", legend),
    figureOf(plot({ ...labels, xTicks: powers, yTicks: powers, curves: curves(logged) }), "ROC, where accusations are rarely wrong", "The same on logarithmic scales."),
  ];
}
