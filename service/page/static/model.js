// The public part of a model's certificate, and how the model is served.

import { el } from "./dom.js";
import { counted, figure, figureUp } from "./format.js";

export function modelFacts(model) {
  const classes = model.classes.length > 12 ? [...model.classes.slice(0, 12), "…"] : model.classes;
  const { rho, epsilon } = model.price_per_row;
  const facts = [
    ["Guarantee", el("span", { class: model.mechanism_status === "proven" ? "tag good" : "tag warn" }, model.mechanism_status)],
    ["Neighbouring", model.neighbouring],
    ["Answers", `${counted(model.classes.length, "class", "classes")}: ${classes.join(", ")}`],
    ["Takes", model.feature_map.columns?.length ? counted(model.feature_map.columns.length, "column") : counted(model.feature_names.length, "number")],
    ["Epsilon", model.canaries && `promised at most ${figureUp(model.canaries.promised_epsilon)}, at delta ${figure(model.canaries.delta)}; ${counted(model.canaries.number, "canary", "canaries")} of the run check it`],
    ["Mechanism", model.mechanism],
    ["Price", rho === 0 ? "paid for once" : `${epsilon === null ? `rho ${figure(rho)}` : `epsilon ${figure(epsilon)}`} a row`],
    ["At a time", `at most ${counted(model.largest_batch, "row")}`],
  ].filter(([, value]) => value !== undefined);
  return [
    el("h2", {}, model.name),
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    Array.isArray(model.assumptions) &&
      el(
        "details",
        {},
        el("summary", {}, "What the certificate assumes"),
        el("ul", {}, model.assumptions.map((each) => el("li", {}, each))),
      ),
  ].filter(Boolean);
}
