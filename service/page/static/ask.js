// Asking: rows from fields, pasted text or a CSV file; the price; and only then the answer.

import { requestName } from "./api.js";
import { hasClasses, showAnswers, showNumbers } from "./answers.js";
import { BadRows, checkedValue, columnsOf, exampleText, expected, rowFrom } from "./columns.js";
import { announce, button, byId, el } from "./dom.js";
import { counted, figure, unitOf, whole } from "./format.js";
import { refusalPanel } from "./refusal.js";
import { inBatches, rowsOfText } from "./rows.js";

const MOST_FIELDS = 24;
const USUAL_COVERAGE = 0.9;
const LARGEST_FILE = 64 * 1024 * 1024;

/** given: {account, model, budget(): the newest, spent(): to be called after a charge, refused(error)}. */
export function mountAsk(given) {
  const { model } = given;
  const inputs = { paste: pasteInput(model), file: fileInput(model) };
  if (columnsOf(model).length <= MOST_FIELDS) inputs.fields = fieldsInput(model);
  const names = { fields: "Fields", paste: "Paste", file: "CSV file" };
  const order = Object.keys(names).filter((name) => name in inputs);
  const panels = Object.fromEntries(order.map((name) => [name, inputs[name].node]));
  const error = el("p", { class: "error", role: "alert", id: "rows-error" });
  const outcome = el("div", { id: "outcome", class: "answers", tabindex: -1 });
  const clip = el("input", { type: "checkbox", name: "clip", id: "clip", checked: model.clips === true });
  let chosen = order[0];
  const choose = (name) => {
    chosen = name;
    for (const each of order) panels[each].hidden = each !== name;
    forget();
  };
  const forget = () => {
    error.textContent = "";
    outcome.replaceChildren(el("p", { class: "note hint" }, given.budget().unlimited ? "The answer appears here." : "The price appears here, and then the answer."));
  };
  const free = el("span", { class: "note" });
  const label = () => {
    price.textContent = given.budget().unlimited ? "Ask" : "See the price";
    free.textContent = given.budget().unlimited ? "" : `Free. ${model.price ? "You pay once, if you then say so." : "A row that you paid for costs nothing again."}`;
  };
  const context = { ...given, spent: () => given.spent().finally(label) };
  const price = button(
    "",
    async () => {
      forget();
      let read;
      try {
        read = await inputs[chosen].read(clip.checked);
      } catch (found) {
        if (!(found instanceof BadRows)) throw found;
        error.textContent = found.message;
        return;
      }
      const wish = clip.checked === (model.clips === true) ? null : clip.checked;
      await quoteAll({ ...context, clip: wish }, read.rows, outcome);
    },
    { class: "primary" },
  );
  const form = el(
    "form",
    { class: "body", novalidate: true, "aria-labelledby": "ask-title" },
    segments("input", "How to give the rows", order.map((name) => [name, names[name]]), choose),
    order.map((name) => panels[name]),
    el("label", { class: "choice-line", for: "clip" }, clip, " Clip to the declared bounds"),
    error,
    el("div", { class: "buttons" }, price, free),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || !event.target.matches("input:not([type=radio], [type=file])")) return;
    event.preventDefault();
    price.click();
  });
  form.addEventListener("input", (event) => event.target.name === "input" || forget());
  choose(chosen);
  label();
  byId("ask-body").replaceChildren(form, outcome);
}

function segments(name, legend, choices, choose) {
  return el(
    "fieldset",
    { class: "segments" },
    el("legend", { class: "visually-hidden" }, legend),
    choices.map(([value, text], place) => {
      const input = el("input", { type: "radio", name, value, checked: place === 0 });
      input.addEventListener("change", () => choose(value));
      return el("label", {}, input, el("span", {}, text));
    }),
  );
}

const FILL = "Fill in an example";

/** A field or a list for each column. */
function fieldsInput(model) {
  const columns = columnsOf(model);
  const fields = columns.map(fieldFor);
  const fill = button(FILL, () => {
    columns.forEach((column, place) => (fields[place].value = exampleText(column)));
    fields[0].dispatchEvent(new Event("input", { bubbles: true }));
  }, { class: "quiet" });
  const part = (column, place) =>
    el(
      "div",
      {},
      el("label", { for: `column-${place}` }, column.name),
      fields[place],
      optionsFor(column, place),
      el(
        "span",
        { class: "visually-hidden", id: `column-${place}-takes` },
        `${expected(column)}${column.required ? "" : ", or nothing where it is missing"}`,
      ),
    );
  return {
    node: el("div", { class: "body" }, el("div", { class: "fields" }, columns.map(part)), el("div", {}, fill)),
    read: async (clip) => {
      const values = columns.map((column, place) => {
        const field = fields[place];
        try {
          if (!field.validity.valid && !(clip && (field.validity.rangeUnderflow || field.validity.rangeOverflow))) throw new BadRows(`${column.name} is incomplete; it must be ${expected(column)}.`);
          const value = checkedValue(field.value, column, { clip });
          field.removeAttribute("aria-invalid");
          return value;
        } catch (found) {
          field.setAttribute("aria-invalid", "true");
          field.focus();
          throw found;
        }
      });
      return { rows: [rowFrom(values, model)] };
    },
  };
}

/** The field of a column: a list where its values are declared, a date where it is one, and text for all others. */
function fieldFor(column, place) {
  const named = { id: `column-${place}`, "aria-describedby": `column-${place}-takes` };
  const listed = column.kind === "boolean" ? ["true", "false"] : column.kind === "levels" && column.unknown === "refuse" ? column.levels : null;
  if (listed) {
    const none = el("option", { value: "" }, column.required ? "Choose one" : "Missing");
    return el("select", named, none, listed.map((level) => el("option", { value: level }, level)));
  }
  const hint = column.required ? "" : "or nothing";
  switch (column.kind) {
    case "date":
      return el("input", { ...named, type: "date", min: column.minimum, max: column.maximum });
    case "datetime":
      return el("input", { ...named, type: "text", autocomplete: "off", placeholder: "2026-01-31T23:59" });
    case "levels":
      return el("input", { ...named, type: "text", autocomplete: "off", list: `column-${place}-levels`, placeholder: hint || null });
    case "text":
      return el("input", { ...named, type: "text", autocomplete: "off", maxlength: column.longest, placeholder: hint || null });
    default: {
      const bounds = `${column.minimum} to ${column.maximum}`;
      return el("input", { ...named, type: "text", inputmode: "decimal", autocomplete: "off", placeholder: hint ? `${bounds}, ${hint}` : bounds });
    }
  }
}

/** The declared levels of a column that takes others too. */
function optionsFor(column, place) {
  if (column.kind !== "levels" || column.unknown === "refuse") return null;
  return el("datalist", { id: `column-${place}-levels` }, column.levels.map((level) => el("option", { value: level })));
}

function pasteInput(model) {
  const columns = columnsOf(model);
  const numbers = !model.feature_map.columns?.length;
  const quoted = (value) => (/[",]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const area = el("textarea", { id: "pasted", spellcheck: "false", autocomplete: "off", "aria-describedby": "pasted-note" });
  const fill = button(FILL, () => {
    const head = numbers ? [] : [columns.map(({ name }) => quoted(name)).join(", ")];
    area.value = [...head, columns.map(exampleText).map(quoted).join(", ")].join("\n");
    area.dispatchEvent(new Event("input", { bubbles: true }));
  }, { class: "quiet" });
  return {
    node: el(
      "div",
      { class: "body" },
      el("label", { for: "pasted" }, `One row a line: ${whole(columns.length)} ${numbers ? "numbers" : "values"} with commas between them`),
      area,
      el(
        "p",
        { class: "note", id: "pasted-note" },
        numbers ? "A first line may name the columns, in any order." : "The first line names the columns, in any order.",
      ),
      el("div", {}, fill),
    ),
    read: async (clip) => rowsOfText(area.value, model, clip),
  };
}

function fileInput(model) {
  const input = el("input", { type: "file", id: "csv", accept: ".csv,.tsv,.txt,text/csv", "aria-describedby": "csv-note" });
  const note = el("p", { class: "note", id: "csv-note" }, "Read in this page; only the model’s columns are sent. Drop a file here, or choose one.");
  const zone = el("div", { class: "drop" }, el("label", { for: "csv" }, "A CSV file of rows"), input, note);
  const over = (event, inside) => {
    event.preventDefault();
    zone.classList.toggle("over", inside);
  };
  zone.addEventListener("dragover", (event) => over(event, true));
  zone.addEventListener("dragleave", (event) => over(event, false));
  zone.addEventListener("drop", (event) => {
    over(event, false);
    input.files = event.dataTransfer.files;
    input.dispatchEvent(new Event("input", { bubbles: true }));
  });
  return {
    node: zone,
    read: async (clip) => {
      const [file] = input.files;
      if (!file) throw new BadRows("Choose a CSV file first.");
      if (file.size > LARGEST_FILE) throw new BadRows("The file is larger than 64 MB; split it, or use the Python client.");
      const read = rowsOfText(textOf(await file.arrayBuffer()), model, clip);
      const ignored = read.ignored.length ? ` Columns left out: ${read.ignored.slice(0, 5).join(", ")}.` : "";
      note.textContent = `${file.name}: ${counted(read.rows.length, "row")}.${ignored}`;
      return read;
    },
  };
}

/** Return the text of a file: UTF-8, or what offices write where it is not. */
function textOf(bytes) {
  try {
    return new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    return new TextDecoder("windows-1252").decode(bytes);
  }
}

/** Ask what the rows would cost, and offer to pay it. */
async function quoteAll(context, rows, outcome) {
  const { account, model } = context;
  const batches = inBatches(rows, model.largest_batch).map((instances) => ({ instances, name: requestName() }));
  try {
    for (const batch of batches) batch.quote = await account.quote(batch.instances, context.clip);
  } catch (error) {
    outcome.replaceChildren(refusalPanel(context.refused(error), { again: () => quoteAll(context, rows, outcome) }));
    return;
  }
  const [budget, total] = [context.budget(), totalOf(batches, context)];
  const asked = () => payAll(context, batches, outcome);
  if (budget.unlimited && total.cost === 0) return asked();
  const label = total.cost === 0 ? "Ask, at no cost" : total.isPaidOnce ? `Pay ${total.said} once, and ask` : `Ask, and pay ${total.said}`;
  const covered = total.admitted && total.cost <= budget.remaining[total.currency] * (1 + 1e-12);
  outcome.replaceChildren(
    bill(total, budget, rows.length),
    covered
      ? el("div", { class: "buttons" }, button(label, asked, { class: "primary", id: "pay" }))
      : el(
          "div",
          { class: "body" },
          el("p", { class: "notice" }, "What is left does not cover this: it would be refused. A refusal costs nothing."),
          el("div", { class: "buttons" }, button("Ask all the same", asked, { id: "pay" })),
        ),
  );
  outcome.scrollIntoView({ block: "nearest" });
  announce(`${counted(rows.length, "row")}, ${total.said}${covered ? "" : ", which would be refused"}`);
}

function totalOf(batches, { model, budget }) {
  const [quotes, isPaidOnce] = [batches.map(({ quote }) => quote), Boolean(model.price)];
  // What is paid for once is paid with the first batch, and each batch was quoted as if it were the first.
  const charged = (isPaidOnce ? quotes.slice(0, 1) : quotes).filter((quote) => quote.cost > 0);
  const [{ currency, price_per_row: price }] = quotes;
  return { ...costOf(charged, budget()), currency, cost: sum(charged, "cost"), fresh: sum(quotes, "new_rows"), price, isPaidOnce, admitted: quotes.every((quote) => quote.admitted) };
}

/** The cost of what was quoted, as a person reads it: of several quotes the later ones add less epsilon than they say. */
function costOf(quotes, account) {
  const unit = unitOf(account);
  const cost = quotes.some((quote) => quote.shown_cost === null) ? null : sum(quotes, "shown_cost");
  const isBound = quotes.length > 1 && !unit.isSum;
  return {
    said: quotes.length > 0 ? `${isBound ? "at most " : ""}${unit.say(cost)}` : "nothing",
    leaves: `${isBound ? "at least " : ""}${unit.say(Math.max(0, unit.left - cost))}`,
  };
}

function bill(total, budget, rows) {
  const unit = unitOf(budget);
  return entries("quote", [
    ["rows", whole(rows)],
    !total.isPaidOnce && ["new to you", whole(total.fresh)],
    !total.isPaidOnce && unit.isSum && ["price of a row", unit.say(total.price)],
    total.isPaidOnce && total.cost > 0 ? ["costs", `${total.said}, once`] : ["adds", total.said],
    ["leaves", total.leaves],
  ]);
}

function entries(id, listed) {
  return el("dl", { class: "bill", id }, listed.filter(Boolean).map(([name, value]) => el("div", {}, el("dt", {}, name), el("dd", {}, value))));
}

/** Pay batch by batch. Each keeps its name, so that asking again after a lost answer is charged once. */
async function payAll(context, batches, outcome, coverage = context.model.prediction_sets ? USUAL_COVERAGE : null) {
  const { account, model } = context;
  let refused = null;
  for (const batch of batches) {
    if (batch.answer) continue;
    try {
      batch.answer = await account.predict(batch.instances, batch.name, coverage, context.clip);
    } catch (error) {
      refused = error;
      break;
    }
  }
  const answered = batches.filter((batch) => batch.answer);
  const parts = [];
  if (refused) {
    const again = refused.passing ? () => payAll(context, batches, outcome, coverage) : null;
    parts.push(refusalPanel(context.refused(refused), { again }));
  }
  if (answered.length > 0) {
    const host = el("div", { class: "answers", id: "answers" });
    const answers = answersOf(answered);
    (hasClasses(model) ? showAnswers : showNumbers)(host, answers, model);
    const receipts = answered.map((batch) => batch.answer.receipt);
    const again = (other) => {
      for (const batch of answered) batch.answer = null;
      return payAll(context, batches, outcome, other);
    };
    const cost = costOf(answered.filter(({ answer }) => answer.receipt.charged > 0).map(({ quote }) => quote), context.budget()).said;
    parts.push(paid(receipts, cost, model), host, coverage === null ? "" : coverageChoice(coverage, model, again));
    announce(saidOf(answers, cost, model));
  }
  outcome.replaceChildren(...parts);
  outcome.focus({ preventScroll: true }); // the button that had the focus is gone
  outcome.scrollIntoView({ block: "nearest" });
  await context.spent();
}

/** A slider for the coverage of prediction sets: another one is asked for at no cost. */
function coverageChoice(coverage, model, again) {
  const shown = el("output", { for: "coverage" }, percentOf(coverage));
  const input = el("input", { type: "range", id: "coverage", min: 50, max: 99, step: 1, value: Math.round(coverage * 100), "aria-describedby": "coverage-note" });
  input.addEventListener("input", () => (shown.textContent = percentOf(input.value / 100)));
  input.addEventListener("change", () => again(input.value / 100));
  const each = model.prediction_sets.by === "class";
  const whose = each ? "records of each class" : "records of all classes together";
  const rare = each ? "" : " Of a rare class it may be far fewer.";
  return el(
    "div",
    { class: "choice" },
    el("label", { class: "label", for: "coverage" }, "Coverage"),
    el("div", { class: "slider" }, input, shown),
    el(
      "p",
      { class: "note", id: "coverage-note" },
      `Grey classes are ruled out. At least so many ${whose} like the training’s have their class among the rest, if chosen beforehand.${rare}`,
    ),
  );
}

const percentOf = (share) => `${Math.round(share * 100)} %`;

function answersOf(batches) {
  let place = 0;
  return batches.flatMap(({ answer: { predictions, noise, prediction_sets: sets }, instances }) =>
    predictions.map((answer, index) => ({
      place: (place += 1),
      row: instances[index],
      answer, // by the names of the outputs, of a model without classes
      probabilities: Array.isArray(answer) ? answer : null,
      set: sets?.classes[index] ?? null,
      noise: {
        on: noise.on,
        no_interval: noise.no_interval,
        scale: noise.scale?.[index],
        interval: noise.lower?.[index].map((low, each) => [low, noise.upper[index][each]]) ?? null,
        undecided: noise.undecided?.[index] ?? null,
      },
    })),
  );
}

const sum = (receipts, name) => receipts.reduce((total, receipt) => total + receipt[name], 0);

function paid(receipts, cost, model) {
  const ids = receipts.map((receipt) => receipt.id).filter((id) => id !== null);
  return entries("paid", [
    (!model.price || ids.length > 0) && ["paid", cost],
    !model.price && ["for new rows", whole(sum(receipts, "charged_rows"))],
    !model.price && ["replayed at no cost", whole(sum(receipts, "replayed_rows"))],
    ids.length > 0 && [ids.length > 1 ? "receipts" : "receipt", ids.map((id) => `№ ${whole(id)}`).join(", ")],
  ]);
}

function saidOf(answers, cost, model) {
  const [{ answer, probabilities }] = answers;
  const said = probabilities ? model.classes[probabilities.indexOf(Math.max(...probabilities))] : Object.entries(answer).map(([name, value]) => `${name} ${[value].flat().map((each) => figure(each)).join(", ")}`).join("; ");
  return `${answers.length === 1 ? `Answer: ${said}` : counted(answers.length, "answer")}. Charged ${cost}.`;
}
