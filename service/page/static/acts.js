// What the owner does: a form, what it means, and the act, each in the one dialog. A new key is shown there once.

import { button, byId, el, table } from "./dom.js";
import { figure, figureUp, moment, percentUp } from "./format.js";
import { refusalPanel } from "./refusal.js";
import { problemOf } from "./session.js";

const MEASURES = { epsilon: "epsilon", rho: "zCDP rho", mu: "mu", posterior_belief: "posterior belief", advantage: "membership advantage" };

let who = "";
let fields = 0;

/** Close the dialog and forget what it shows, and who acted. */
export function forgetActs() {
  who = "";
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

function field(label, input, note = null) {
  const id = `act-field-${(fields += 1)}`;
  input.id = id;
  if (note) input.setAttribute("aria-describedby", `${id}-note`);
  return el("div", {}, el("label", { for: id }, label), input, note && el("p", { class: "note", id: `${id}-note` }, note));
}

const text = (name, value = "", more = {}) => el("input", { name, value, autocomplete: "off", spellcheck: "false", ...more });

function select(name, options, chosen) {
  return el("select", { name }, options.map(([value, label]) => el("option", { value, selected: value === chosen }, label)));
}

function number(given, name) {
  const said = given.get(name).trim();
  if (said === "") return null;
  if (!Number.isFinite(Number(said))) throw new RangeError(`“${said}” is no number.`);
  return Number(said);
}

/** Fields of a budget. account: as it is, if there is one. */
export function budgetFields(account = null) {
  const refill = account?.refill;
  const currency = account?.currency ?? "rho";
  const kept = account ? " Empty: as it is." : "";
  return {
    fields: [
      field("The budget as", select("measure", Object.entries(MEASURES), "epsilon")),
      field("Amount", text("amount", "", { inputmode: "decimal", required: account === null }), `The most that is ever spent.${kept}`),
      field("Delta", text("delta", account ? String(account.delta) : "", { inputmode: "decimal" }), account ? null : "Empty: as the lineage’s."),
      field("Spread over time", select("period", [["none", "no: all at once"], ["day", "each day"], ["week", "each week"], ["month", "each month"]], refill?.period ?? "none")),
      field("Of it in each period", text("each", refill ? String(refill.each[currency]) : "", { inputmode: "decimal" }), `As ${currency === "rho" ? "zCDP rho" : "epsilon"}. It spreads the budget, and adds nothing to it.`),
    ],
    read(given) {
      const amount = number(given, "amount");
      const each = number(given, "each");
      const period = given.get("period");
      if (period !== "none" && each === null) throw new RangeError("Say how much of the budget each period has.");
      const pace = period === "none" ? "none" : `${currency}:${given.get("each").trim()}/${period}`;
      const unchanged = refill && period === refill.period && each === refill.each[currency];
      return {
        ...(amount === null ? {} : { [given.get("measure")]: amount }),
        delta: number(given, "delta"),
        refill: unchanged || (!refill && period === "none") ? null : pace,
      };
    },
  };
}

/** Fields of a new API key. */
export function keyFields() {
  return {
    fields: [
      field("The key lasts", select("life", [["", "for ever"], ["1", "a day"], ["30", "30 days"], ["90", "90 days"], ["365", "a year"]], "")),
      field("It may", select("scopes", [["predict budget-read", "ask, and read its budget"], ["budget-read", "read its budget alone"], ["predict", "ask alone"]], "")),
    ],
    read: (given) => ({ expires_in_days: number(given, "life"), scopes: given.get("scopes").split(" ") }),
  };
}

/** Fields of plain text or of a choice, each under its own name: [[name, label, value, note | options]]. */
export function plainFields(...named) {
  return {
    fields: named.map(([name, label, value, more]) =>
      Array.isArray(more) ? field(label, select(name, more, value)) : field(label, text(name, value, { maxlength: 256 }), more),
    ),
    read: (given) => Object.fromEntries(named.map(([name]) => [name, given.get(name)])),
  };
}

/** A form that asks who acts and why, too. submit(what was read, by, why) may throw what is to be said in it. */
function signed(label, content, submit) {
  const said = el("p", { class: "error", role: "alert" });
  const send = el("button", { type: "submit", class: "primary" }, label);
  const form = el(
    "form",
    { class: "body", novalidate: true },
    content,
    field("Who you are, for the audit trail", text("by", who, { maxlength: 255, required: true })),
    field("Why, for the audit trail", text("why", "", { maxlength: 1000, required: true })),
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
      who = read.get("by").trim();
      const why = read.get("why").trim();
      if (!who || !why) throw new RangeError("Say who you are, and why: both go into the audit trail.");
      await submit(read, who, why);
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
 * Ask for what an act needs, show what it means, and do it. given: what is known of it already; parts: its fields;
 * fix(read): what becomes of what was read; done(): called once it is done. `post(path, body)` asks the service.
 */
export function perform({ title, given, parts = [], fix = (read) => read, post, done, danger = false }) {
  const form = signed("See what it means", parts.flatMap((part) => part.fields), async (read, by, why) => {
    const act = { ...fix(Object.assign({}, given, ...parts.map((part) => part.read(read)))), by, why };
    const told = await post("acts?dry_run=true", act);
    // Whoever is refused now must be refused whatever else was done meanwhile.
    confirm({ title, act: danger ? act : { ...act, after_act: told.newest_act }, told, post, done, back: () => show(title, form), danger });
  });
  show(title, form);
}

const sentence = (detail) => `${detail.slice(0, 1).toUpperCase()}${detail.slice(1)}${/[.!?]$/.test(detail) ? "" : "."}`;

function confirm({ title, act, told, post, done, back, danger }) {
  const said = el("div", {});
  const doIt = async () => {
    try {
      const result = await post("acts", act);
      result.key === null ? close() : showKey(title, result);
      await done(result);
    } catch (error) {
      said.replaceChildren(refusalPanel(problemOf(error)));
    }
  };
  show(
    `${title}: what it means`,
    el("p", { class: told.raises || danger ? "notice" : null }, told.words),
    told.after && meaning(told),
    told.after && el("p", { class: "prose" }, told.after.explanation.in_plain_words),
    said,
    el("div", { class: "buttons" }, button("Do it", doIt, { class: "primary" }), button("Back", back), button("Cancel", close)),
  );
}

function meaning({ before, after }) {
  const rows = [
    ["epsilon, in all", (each) => figureUp(each.limit.epsilon)],
    ["at delta", (each) => figure(each.delta)],
    ["rho, in all", (each) => (each.limit.rho === null ? "–" : figure(each.limit.rho))],
    [`belief about one ${after.explanation.unit === null ? "record" : "unit"}, at most`, (each) => percentUp(each.posterior_belief_bound.when_spent)],
    ["advantage of an attack, at most", (each) => percentUp(each.membership_advantage_bound.when_spent)],
    ["answers left", (each) => (each.queries_left === null ? "–" : figure(each.queries_left, 9))],
    ["in each period", (each) => (each.refill ? `${each.currency} ${figure(each.refill.each[each.currency])} a ${each.refill.period}` : "–")],
  ];
  const columns = [{ title: "what" }, ...(before ? [{ title: "now", numeric: true }] : []), { title: "then", numeric: true }];
  return table("What it means", columns, rows.map(([name, of]) => [name, ...(before ? [of(before)] : []), of(after)]));
}

function showKey(title, { key, key_id: id }) {
  const shown = el("input", { value: key, readonly: true, autocomplete: "off", "aria-label": "The API key", class: "mono", id: "new-key" });
  const said = el("span", { class: "note", role: "status" });
  show(
    `${title}: done`,
    el("p", { class: "notice" }, "This is the only time that this key is shown: the ledger keeps a digest of it."),
    shown,
    el("p", { class: "note" }, `Its id is ${id}.`),
    el(
      "div",
      { class: "buttons" },
      button("Copy", async () => {
        shown.select();
        await navigator.clipboard.writeText(key).then(() => (said.textContent = "Copied."), () => (said.textContent = "Selected: copy it."));
      }),
      button("I have kept it", close, { class: "primary" }),
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
  const format = plainFields(["format", "Format", "jsonl", [["jsonl", "JSON Lines"], ["csv", "CSV"]]]);
  const content = [el("p", {}, "All acts and receipts of the lineage. That it was downloaded is an act itself."), format.fields];
  const form = signed("Download", content, async (read, by, why) => {
    const blob = await fetchTrail({ lineage, by, why, format: read.get("format") });
    const url = URL.createObjectURL(blob);
    el("a", { href: url, download: `${lineage}-trail.${read.get("format")}` }).click();
    setTimeout(() => URL.revokeObjectURL(url), 1000);
    close();
  });
  show("Download the audit trail", form);
}

/** What an API key is, in words. */
export function keyInWords({ id, scopes, expires }) {
  return `${id}: ${scopes.join(", ")}${expires === null ? "" : `, until ${moment(expires)}`}`;
}
