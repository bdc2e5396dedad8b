// The client's page: sign in, look, ask. The key lives in one object, which signing out or leaving the page empties.

import { showAccount, showSpend } from "./account.js";
import { Account, Refusal, publicModel } from "./api.js";
import { mountAsk } from "./ask.js";
import { announce, byId, el } from "./dom.js";
import { chance, counted, figure, whole } from "./format.js";
import { showReceipts } from "./receipts.js";
import { exampleProblem, refusalPanel } from "./refusal.js";

let account = null;
let model = null;
let budget = null;
let signingIn = false;

async function showModel() {
  const about = byId("about");
  try {
    const found = await publicModel();
    model = found.model;
    about.replaceChildren(...modelFacts(model));
    document.title = `${model.name} · dpserve`;
    if (found.rehearsal) notice("This is a rehearsal: the ledger may lose charges. Nothing here is to be relied upon.");
    if (model.mechanism_status === "unproven") {
      notice("Unproven: the guarantee of this model’s mechanism is claimed and not proven. Nothing is promised about any record.");
    }
  } catch (error) {
    about.replaceChildren(refusalPanel(problemOf(error), { again: showModel }));
  }
  about.setAttribute("aria-busy", "false");
}

function modelFacts(model) {
  const classes = model.classes.length > 12 ? [...model.classes.slice(0, 12), "…"] : model.classes;
  const price = model.price_per_row.rho;
  const facts = [
    ["Guarantee", el("span", { class: model.mechanism_status === "proven" ? "tag good" : "tag warn" }, model.mechanism_status)],
    ["Neighbouring", model.neighbouring],
    ["Answers", `${counted(model.classes.length, "class", "classes")}: ${classes.join(", ")}`],
    ["Takes", counted(model.feature_names.length, "number")],
    ["Mechanism", model.mechanism],
    ["Price", price > 0 ? `rho ${figure(price)} a row` : "paid for once"],
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

function notice(text) {
  byId("notices").append(el("p", { class: "notice" }, text));
}

function problemOf(error) {
  if (error instanceof Refusal) return error.problem;
  throw error;
}

/** The problem to show; a key that is no longer good ends the session. */
function refused(error) {
  const problem = problemOf(error);
  if (problem.status === 401) signOut(`${problem.detail}. You were signed out.`);
  return problem;
}

async function signIn(event) {
  event.preventDefault();
  if (signingIn) return;
  const input = byId("key");
  const said = byId("key-error");
  const key = input.value.trim();
  said.textContent = "";
  if (!/^[!-~]+$/.test(key)) {
    said.textContent = key ? "An API key has no spaces and only plain characters." : "Paste your API key here first.";
    input.focus();
    return;
  }
  const candidate = new Account(key);
  signingIn = true;
  try {
    if (model === null) await showModel();
    const found = await candidate.budget();
    input.value = "";
    account = candidate;
    await open(found);
  } catch (error) {
    candidate.forget();
    const problem = problemOf(error);
    said.textContent = problem.status === 401 ? "This key is not good here: it is not known, or it was revoked." : problem.detail;
    input.focus();
    input.select();
  } finally {
    signingIn = false;
  }
}

async function open(found) {
  byId("welcome").hidden = true;
  byId("account").hidden = false;
  byId("sections").hidden = false;
  byId("sign-out").hidden = false;
  byId("account-title").textContent = `Your account with ${model.name}`;
  show(found);
  mountAsk({ account, model, budget: () => budget, spent: refresh, refused });
  byId("account-title").focus({ preventScroll: true });
  window.scrollTo(0, 0);
  announce(`Signed in. ${found.queries_left === null ? "" : `${whole(found.queries_left)} answers left.`}`);
  await refreshReceipts();
}

function show(found) {
  budget = found;
  showAccount(found, model);
  byId("refusal-body").replaceChildren(refusalPanel(exampleProblem(found), { example: true }));
  byId("foot").textContent =
    `Every epsilon here is at delta = ${figure(found.delta)}, ${chance(found.delta)}, by the ${found.analysis}. ` +
    "Bounds are rounded up; amounts of rho are exact to twelve decimals, and shown to four digits.";
}

async function refreshReceipts() {
  if (account === null) return;
  try {
    const page = await account.receipts();
    showReceipts(page);
    showSpend(page, budget);
  } catch (error) {
    const panel = refusalPanel(refused(error), { again: refreshReceipts });
    byId("receipts-body").replaceChildren(panel);
  }
}

async function refresh() {
  if (account === null) return;
  try {
    show(await account.budget());
  } catch (error) {
    refused(error);
    return;
  }
  await refreshReceipts();
}

function signOut(why = "") {
  account?.forget();
  account = null;
  budget = null;
  for (const body of document.querySelectorAll("#account .body")) if (body.id) body.replaceChildren();
  for (const id of ["gauge", "words"]) byId(id).replaceChildren();
  byId("account").hidden = true;
  byId("sections").hidden = true;
  byId("sign-out").hidden = true;
  byId("welcome").hidden = false;
  byId("foot").textContent = "";
  byId("key").value = "";
  byId("key-error").textContent = why;
  byId("key").focus();
  if (!why) announce("Signed out.");
}

byId("sign-in").addEventListener("submit", signIn);
byId("sign-out").addEventListener("click", () => signOut());
// A page that the browser keeps for the back button must not keep the key.
window.addEventListener("pagehide", () => signOut());
await showModel();
