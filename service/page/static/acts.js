// The owner's acts in the one dialog: a form made from an act's JSON Schema, what it means, and the act. The service
// declares the acts (accounting/acts.py); nothing here knows one by its name. A new key is shown there once.

import { button, byId, el, table } from "./dom.js";
import { figure, moment, percentUp, whole } from "./format.js";
import { refusalPanel } from "./refusal.js";
import { problemOf } from "./session.js";

/** Fields of every request, which no form asks for by themselves. */
const OF_REQUESTS = ["act", "lineage", "by", "why", "after_act"];

let actor = "";
let fields = 0;

/** Close the dialog and forget what it shows, and who acted. */
export function forgetActs() {
  actor = "";
  byId("act").close();
  byId("act-body").replaceChildren();
}

export function show(title, ...content) {
  byId("act-title").textContent = title;
  byId("act-body").replaceChildren(...content);
  const dialog = byId("act");
  if (!dialog.open) dialog.showModal();
  byId("act-title").focus();
}

/** One account's facts, and what can be done with it. acts: [[label, act]]. */
export function showAccount(title, facts, acts) {
  show(
    title,
    el("dl", { class: "facts" }, facts.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
    el("div", { class: "buttons" }, acts.map(([label, act]) => button(label, act))),
  );
}

const words = (name) => sentenceCase(name.replaceAll(/[-_]/g, " "));
const sentenceCase = (text) => `${text.slice(0, 1).toUpperCase()}${text.slice(1)}`;
const sentence = (detail) => `${sentenceCase(detail)}${/[.!?]$/.test(detail) ? "" : "."}`;

/** What an act is called on buttons. */
export const labelOf = (schema) => words(schema.properties.act.const);

/** The acts that change an account of a scope; with `opens`, those that open one. */
export const actsAbout = (schemas, scope, opens = false) =>
  schemas.filter((each) => each["x-about"].includes(scope) && each["x-opens"] === opens);

function field(label, input, note = null) {
  const id = `act-field-${(fields += 1)}`;
  input.id = id;
  if (note) input.setAttribute("aria-describedby", `${id}-note`);
  return el("div", {}, el("label", { for: id }, label), input, note && el("p", { class: "note", id: `${id}-note` }, note));
}

const text = (name, more = {}) => el("input", { name, autocomplete: "off", spellcheck: "false", ...more });
const decimal = (name) => text(name, { inputmode: "decimal" });

function select(name, options) {
  return el("select", { name }, options.map(([value, label]) => el("option", { value }, label)));
}

function number(given, name) {
  const typed = given.get(name).trim();
  if (typed === "") return undefined;
  if (!Number.isFinite(Number(typed))) throw new RangeError(`“${typed}” is no number.`);
  return Number(typed);
}

function checks(name, label, words, note) {
  const boxes = words.map((word) => el("label", {}, el("input", { type: "checkbox", name, value: word }), ` ${word}`));
  return el("fieldset", { class: "checks" }, el("legend", {}, label), boxes, el("p", { class: "note" }, note));
}

/** A text that names something: chosen from what there is, or typed. */
function nameInput(name, property, required, known) {
  if (property["x-names"] === "key") return select(name, [...(required ? [] : [["", "all of them"]]), ...known.map((id) => [id, id])]);
  const list = el("datalist", { id: `act-list-${(fields += 1)}` }, known.map((value) => el("option", { value })));
  return [text(name, { list: list.id }), list];
}

/** One field of an act: its nodes, and read(form data), which returns its value, or undefined for what was left empty. */
function fieldOf(name, property, required, known) {
  const kind = property.anyOf?.find(({ type }) => type !== "null") ?? property;
  const range = [kind.minimum !== undefined && `From ${whole(kind.minimum)}`, kind.maximum !== undefined && `to ${whole(kind.maximum)}`].filter(Boolean).join(" ");
  const note = [property.description, range && `${range}.`].filter(Boolean).join(" ");
  const label = words(name);
  const typed = (given) => (given.get(name) === "" && !required ? undefined : given.get(name));
  if (kind.type === "array") {
    const read = (given) => (given.has(name) ? given.getAll(name) : undefined);
    return { nodes: checks(name, label, kind.items.enum, note), read };
  }
  if (kind.enum) return { nodes: field(label, select(name, [...(required ? [] : [["", "by default"]]), ...kind.enum.map((word) => [word, word])]), note), read: typed };
  if (kind.type === "number" || kind.type === "integer") return { nodes: field(label, decimal(name), note), read: (given) => number(given, name) };
  if (known) {
    const [input, list] = [nameInput(name, property, required, known)].flat();
    return { nodes: [field(label, input, note), list], read: typed };
  }
  return { nodes: field(label, text(name, { maxlength: kind.maxLength ?? null, required: kind.minLength > 0 }), note), read: typed };
}

/** An amount, in one of the measures that a budget has: [[name, property]]. */
function measureField(measures) {
  const chosen = select("measure", measures.map(([name]) => [name, words(name)]));
  const amount = field("Amount", decimal("amount"), measures[0][1].description);
  chosen.addEventListener("change", () => {
    amount.querySelector(".note").textContent = Object.fromEntries(measures)[chosen.value].description;
  });
  return { nodes: [field("The budget as", chosen), amount], read: (given) => ({ [given.get("measure")]: number(given, "amount") }) };
}

/** The fields of an act's form: the lineage, where several are to choose from, and those that must be stated come first. */
function fieldsOf(schema, known, lineages) {
  // An act that changes an account is about the one whose dialog this is; one that opens it asks for the name.
  const apart = [...OF_REQUESTS, ...(schema["x-opens"] ? [] : schema["x-about"])];
  const properties = Object.entries(schema.properties).filter(([name]) => !apart.includes(name));
  const measures = properties.filter(([, property]) => property["x-measure"]);
  const made = ([name, property]) => {
    if (name === measures[0]?.[0]) return measureField(measures);
    const opened = schema["x-opens"] && schema["x-about"].includes(property["x-names"]);
    const { nodes, read } = fieldOf(name, property, schema.required.includes(name), opened ? undefined : known[property["x-names"]]);
    return { nodes, read: (given) => ({ [name]: read(given) }) };
  };
  const [stated, others] = [true, false].map((required) => properties.filter(([name]) => schema.required.includes(name) === required));
  const where = { nodes: field("Lineage", select("lineage", lineages.map((name) => [name, name]))), read: (given) => ({ lineage: given.get("lineage") }) };
  return [...(lineages.length > 1 ? [where] : []), ...[...stated, ...others].filter((each) => !measures.slice(1).includes(each)).map(made)];
}

/** A form that asks who acts and why, too. submit(what was read, by, why) may throw what is to be said in it. */
function signed(label, content, submit) {
  const said = el("p", { class: "error", role: "alert" });
  const send = el("button", { type: "submit", class: "primary" }, label);
  const form = el(
    "form",
    { class: "body", novalidate: true },
    content,
    field("Who you are, for the audit trail", text("by", { value: actor, maxlength: 255, required: true })),
    field("Why, for the audit trail", text("why", { maxlength: 1000, required: true })),
    said,
    el("div", { class: "buttons" }, send, button("Cancel", close)),
  );
  let asking = false;
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    if (asking) return;
    const read = new FormData(form);
    said.textContent = "";
    asking = true;
    send.setAttribute("aria-disabled", "true");
    try {
      actor = read.get("by").trim();
      const why = read.get("why").trim();
      if (!actor || !why) throw new RangeError("Say who you are, and why: both go into the audit trail.");
      await submit(read, actor, why);
    } catch (error) {
      said.textContent = error instanceof RangeError ? error.message : sentence(problemOf(error).detail);
    } finally {
      asking = false;
      send.removeAttribute("aria-disabled");
    }
  });
  return form;
}

/**
 * Ask for what an act needs, show what it means, and do it. schema: the act's; subject: the name of the account that it
 * is about, if it has one; given: fields that are known already; lineages: those to choose from, if not known; known:
 * names to choose from, by what they name. `post(path, body)` asks the service, and done() is called once it is done.
 */
export function perform({ schema, subject = null, given, lineages, known, post, done }) {
  const title = subject === null ? labelOf(schema) : `${labelOf(schema)}: ${subject}`;
  const parts = fieldsOf(schema, known, lineages);
  const content = [el("p", {}, schema.description), parts.map(({ nodes }) => nodes)];
  const form = signed("See what it means", content, async (read, by, why) => {
    const act = { ...Object.assign({}, given, ...parts.map((part) => part.read(read))), act: schema.properties.act.const, by, why };
    const effect = await post("acts?dry_run=true", act);
    const request = schema["x-urgent"] ? act : { ...act, after_act: effect.newest_act };
    confirm({ title, act: request, effect, post, done, back: () => show(title, form), urgent: schema["x-urgent"] });
  });
  show(title, form);
}

function confirm({ title, act, effect, post, done, back, urgent }) {
  const said = el("div", {});
  const doIt = async () => {
    try {
      const result = await post("acts", act);
      const refreshed = done(result);
      // A key is shown at once, whatever becomes of the refresh; what is opened after it shows what the act did.
      const end = () => refreshed.finally(close);
      if (result.key !== null) showKey(title, result, end);
      else if (result.warning) show(`${title}: done`, el("p", { class: "notice" }, result.warning), button("Close", end));
      else close();
      await refreshed;
    } catch (error) {
      said.replaceChildren(refusalPanel(problemOf(error)));
    }
  };
  show(
    `${title}: what it means`,
    el("p", { class: effect.raises || urgent ? "notice" : null }, effect.words),
    effect.after && meaning(effect),
    effect.after && el("details", {}, el("summary", {}, "In words"), el("p", { class: "note" }, effect.after.explanation.in_plain_words)),
    said,
    el("div", { class: "buttons" }, button("Do it", doIt, { class: "primary" }), button("Back", back), button("Cancel", close)),
  );
}

function meaning({ before, after }) {
  const rows = [
    [`${after.shown_in}, in all`, (each) => figure(each.limit[after.shown_in])],
    ["at delta", (each) => figure(each.delta)],
    [`belief about one ${after.explanation.unit === null ? "record" : "unit"}, at most`, (each) => percentUp(each.posterior_belief_bound.when_spent)],
    ["advantage of an attack, at most", (each) => percentUp(each.membership_advantage_bound.when_spent)],
    ["answers left", (each) => (each.queries_left === null ? "–" : figure(each.queries_left, 9))],
  ];
  const columns = [{ title: "what" }, ...(before ? [{ title: "now", numeric: true }] : []), { title: "then", numeric: true }];
  return table("What it means", columns, rows.map(([name, of]) => [name, ...(before ? [of(before)] : []), of(after)]));
}

function showKey(title, { key, key_id: id, warning }, kept) {
  const shown = el("input", { value: key, readonly: true, autocomplete: "off", "aria-label": "The API key", class: "mono", id: "new-key" });
  const said = el("span", { class: "note", role: "status" });
  show(
    `${title}: done`,
    el("p", { class: "notice" }, "This is the only time that this key is shown: the ledger keeps a digest of it."),
    shown,
    el("p", { class: "note" }, `Its id is ${id}.`),
    warning && el("p", { class: "notice" }, warning),
    el(
      "div",
      { class: "buttons" },
      button("Copy", async () => {
        shown.select();
        await navigator.clipboard.writeText(key).then(() => (said.textContent = "Copied."), () => (said.textContent = "Selected: copy it."));
      }),
      button("I have kept it", kept, { class: "primary" }),
      said,
    ),
  );
}

export function close() {
  byId("act-body").replaceChildren();
  byId("act").close();
}

/** Ask who and why, and then for the audit trail, which the browser keeps as a file. */
export function downloadTrail({ lineage, fetchTrail }) {
  const content = [el("p", {}, "All acts and receipts of the lineage, as JSON lines. The download is an act, too, and is in the trail from then on.")];
  const form = signed("Download", content, async (_, by, why) => {
    const blob = await fetchTrail({ lineage, by, why });
    const url = URL.createObjectURL(blob);
    el("a", { href: url, download: `${lineage}-trail.jsonl` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    close();
  });
  show("Download the audit trail", form);
}

/** What an API key is, in words. */
export function keyInWords({ id, scopes, expires }) {
  return `${id}: ${scopes.join(", ")}${expires === null ? "" : `, until ${moment(expires)}`}`;
}
