// Answers: probabilities as bars, with how far the noise may have moved them.

import { announce, button, el, table } from "./dom.js";
import { figure, figureUp, probability, whole } from "./format.js";

const PAGE = 20;

/**
 * answers: [{place, row, probabilities, set, noise: {on, holds, scale, interval, undecided, no_interval}}], as the service
 * says; set: the names of the classes in the prediction set, null where none is asked for.
 */
export function showAnswers(host, answers, model) {
  const bands = answers.map(({ noise }) => noise.interval);
  if (answers.length === 1) {
    host.replaceChildren(bars(answers[0], bands[0], model), note(answers, bands, model));
    return;
  }
  const detail = el("div", { "aria-live": "polite" }, bars(answers[0], bands[0], model));
  const columns = [{ title: "row" }, { title: "likeliest class" }, { title: "probability", numeric: true }, { title: "95 % band", numeric: true }, ...(answers[0].set ? [{ title: "prediction set" }] : []), { title: "all classes", hidden: true }];
  const save = button("Save as CSV", () => download(answers, bands, model));
  host.replaceChildren(detail, ...paged(answers, columns, (answer) => line(answer, answer.noise.interval, model, detail), save), note(answers, bands, model));
}

/** Whether the answers of a model are probabilities of classes, and not numbers of other names. */
export function hasClasses(model) {
  return model.outputs.length === 1 && model.outputs[0].name === "probabilities";
}

/** Answers of a model without classes: each of its numbers, by its name, with how far noise may have moved it. */
export function showNumbers(host, answers, model) {
  const named = numbersOf(model);
  const columns = [{ title: "row" }, ...named.flatMap(({ title }) => [{ title, numeric: true }, { title: `${title}, 95 % band`, numeric: true }])];
  const cells = ({ place, answer, noise }) => [
    whole(place),
    ...named.flatMap(({ of }, index) => [figure(of(answer)), noise.interval ? noise.interval[index].map((end) => figure(end)).join(" to ") : "–"]),
  ];
  const lines = () => answers.map(({ place, answer, noise }) => [place, ...named.flatMap(({ of }, index) => [of(answer), ...(noise.interval?.[index] ?? ["", ""])])]);
  const save = button("Save as CSV", () => saveCsv(["row", ...named.flatMap(({ title }) => [title, `${title} low`, `${title} high`])], lines()));
  const { noise } = answers[0];
  const band = noise.interval ? "In at least 95 of 100 draws of the noise a band holds what the model would say without any." : `There is no band: ${noise.no_interval}.`;
  const sentences = model.outputs.map(({ name, sentence }) => `${name}: ${sentence}.`).join(" ");
  host.replaceChildren(...paged(answers, columns, cells, save), trust(`${sentences} ${band}`));
}

/** The numbers of an answer without classes: a title of each, and what reads it from the answer. */
function numbersOf(model) {
  return model.outputs.flatMap(({ name, labels }) =>
    labels ? labels.map((label, index) => ({ title: `${name} ${label}`, of: (answer) => answer[name][index] })) : [{ title: name, of: (answer) => answer[name] }],
  );
}

/** Return a table of answers, some at a time, and the buttons below it. */
function paged(answers, columns, cells, save) {
  const list = el("div", {});
  const place = el("span", { class: "note" });
  let start = 0;
  const turn = (by) => {
    start = Math.min(Math.max(start + by, 0), answers.length - 1);
    const shown = answers.slice(start, start + PAGE);
    list.replaceChildren(table("Answers by row", columns, shown.map(cells)));
    place.textContent = `${whole(start + 1)} to ${whole(start + shown.length)} of ${whole(answers.length)}`;
    before.disabled = start === 0;
    after.disabled = start + PAGE >= answers.length;
    if (by) announce(`Answers ${place.textContent}`);
  };
  const before = button("Before", () => turn(-PAGE));
  const after = button("After", () => turn(PAGE));
  turn(0);
  return [list, el("div", { class: "buttons" }, answers.length > PAGE ? [before, after] : [], save, place)];
}

function line(answer, interval, model, detail) {
  const top = indexOfLargest(answer.probabilities);
  return [
    whole(answer.place),
    isUndecided(answer) ? `${model.classes[top]} (undecided)` : model.classes[top],
    probability(answer.probabilities[top]),
    interval ? interval[top].map(probability).join(" to ") : "–",
    ...(answer.set ? [setInWords(answer.set)] : []),
    button("Show", () => detail.replaceChildren(bars(answer, interval, model)), {
      class: "quiet",
      "aria-label": `Show all classes of row ${answer.place}`,
    }),
  ];
}

function bars(answer, interval, model) {
  const top = indexOfLargest(answer.probabilities);
  const most = Math.max(...answer.probabilities, ...(interval ?? []).map(([, high]) => high));
  const full = [0.1, 0.2, 0.25, 0.5, 1].find((each) => each >= most * 0.999) ?? 1;
  const percent = (value) => `${Math.min(100, (value / full) * 100)}%`;
  return el(
    "div",
    { class: "answer" },
    el("h2", {}, `Row ${whole(answer.place)}: `, el("strong", { class: "top-class" }, model.classes[top])),
    answer.set?.length === 0 && el("p", { class: "notice" }, "Every class is ruled out: none reaches the probability that this share of records had for their own class. The row is unlike them, or lies between classes."),
    isUndecided(answer) && el("p", { class: "notice undecided" }, "Undecided: the noise could have made this class the likeliest."),
    el(
      "div",
      { class: "bars", role: "list", "aria-label": `Probabilities of row ${answer.place}` },
      answer.probabilities.map((p, place) => {
        const value = el("i", { class: "value" });
        value.style.width = percent(p);
        const whiskers = interval && el("i", { class: "band" });
        if (whiskers) {
          whiskers.style.left = percent(interval[place][0]);
          whiskers.style.width = `${Math.max(0, ((interval[place][1] - interval[place][0]) / full) * 100)}%`;
        }
        return el(
          "div",
          { role: "listitem", class: ruledOut(answer, model.classes[place]) ? "ruled-out" : place === top ? "top" : null },
          el("span", { class: "name" }, model.classes[place], ruledOut(answer, model.classes[place]) && el("span", { class: "visually-hidden" }, " (ruled out)")),
          el("span", { class: "plot", "aria-hidden": "true" }, value, whiskers),
          el(
            "span",
            { class: "value-text" },
            probability(p),
            interval && el("small", {}, el("span", { class: "visually-hidden" }, "band "), interval[place].map(probability).join("–")),
          ),
        );
      }),
    ),
    full < 1 && el("p", { class: "note" }, `The bars end at ${probability(full)}.`),
  );
}

/** Whether the noise could have made the winner; false where that is not known, of which the note says more. */
function isUndecided({ noise }) {
  return noise.undecided === true;
}

const ruledOut = ({ set }, name) => set !== null && !set.includes(name);

const MOST_NAMED = 4;

function setInWords(set) {
  if (set.length === 0) return "none: unlike the records";
  return set.length <= MOST_NAMED ? set.join(", ") : `${set.slice(0, MOST_NAMED).join(", ")} and ${whole(set.length - MOST_NAMED)} more`;
}

/**
 * Return how many times as likely as the class drawn the model holds any other at most, in 95 of 100 draws.
 *
 * A class v is drawn in proportion to e^(z_v / s). By Markov's argument over the C - 1 other classes, the model's own
 * likeliest class is more than e^g times as likely as v with probability at most (C - 1) e^(-g / s). Weights below 2^-24
 * of the largest are raised to it, which adds at most (C - 1) 2^-24: 0.0001 of the 0.05 is kept for that.
 */
export function mostTimesAsLikely(scale, classes) {
  return Math.exp(scale * Math.max(0, Math.log((classes - 1) / (0.05 - 0.0001))));
}

const OF_MODEL =
  "That is an average over draws of the noise: where few answers are decided, many of these may name another class than the " +
  "model without noise. They say nothing about whether the model is right.";

function note(answers, bands, model) {
  return trust(saidOf(answers, bands, model));
}

function trust(said) {
  return el("details", { id: "band-note" }, el("summary", {}, "How far to trust this"), el("p", { class: "note" }, said));
}

function saidOf(answers, bands, model) {
  const { noise } = answers[0];
  if (noise.on === "selection") return ofSelection(Math.max(...answers.map((answer) => answer.noise.scale)), model);
  if (bands.every((interval) => interval === null)) return `There is no band: ${noise.no_interval}.`;
  if (noise.on === "log-odds") {
    const others = model.classes.length > 2 ? " The other classes share the rest evenly, and their whiskers end where that leaves nothing." : "";
    return (
      "One class was drawn: the likelier the model holds a class, the likelier it is drawn. The whiskers are the noise on it: in at least 95 of " +
      `100 answers they hold what the model would say of this class without any.${others} ${OF_MODEL}`
    );
  }
  return model.price
    ? "The whiskers are the noise, which was drawn once, when the model was trained, and is the same in every answer: " +
        `in at least 95 of 100 such models they hold what the model would say without any. ${OF_MODEL}`
    : `The whiskers are the noise: in at least 95 of 100 answers they hold what the model would say without any. ${OF_MODEL}`;
}

function ofSelection(scale, model) {
  const times = mostTimesAsLikely(scale, model.classes.length);
  const most = times < 1000 ? figureUp(times, 3) : whole(Math.ceil(times));
  return (
    "There is no band: the answer is one class, and no probability. It was drawn by chance: the likelier the model holds a class, the likelier it is drawn. " +
    (times < SAYS_NOTHING
      ? `In at least 95 of 100 answers the model itself holds no class for more than ${most} times as likely as the one drawn.`
      : "At this price the draw is nearly even, whatever the model says.")
  );
}

const SAYS_NOTHING = 1e6;

function indexOfLargest(values) {
  return values.indexOf(Math.max(...values));
}

function download(answers, bands, model) {
  const ends = model.classes.flatMap((name) => [`${name} low`, `${name} high`]);
  const { set, noise } = answers[0];
  const more = [...(noise.undecided === null ? [] : ["undecided"]), ...(set ? ["prediction set"] : [])];
  const lines = answers.map(({ place, probabilities, set, noise }, index) => [
    place,
    ...probabilities,
    ...(bands[index] ?? probabilities.map(() => ["", ""])).flat(),
    ...(noise.undecided === null ? [] : [noise.undecided]),
    ...(set ? [set.join("; ")] : []),
  ]);
  saveCsv(["row", ...model.classes, ...ends, ...more], lines);
}

function saveCsv(head, rows) {
  const quoted = (cell) => (/[",\n\r]/.test(String(cell)) ? `"${String(cell).replaceAll('"', '""')}"` : cell);
  const lines = [head, ...rows].map((cells) => cells.map(quoted).join(","));
  const url = URL.createObjectURL(new Blob([[...lines, ""].join("\n")], { type: "text/csv" }));
  const link = el("a", { href: url, download: "answers.csv" });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
