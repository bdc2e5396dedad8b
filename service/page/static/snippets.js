// The same from a program: with the model's own columns and address, and a place for the key, which is never shown.

import { columnsOf, exampleRow } from "./columns.js";
import { byId, el } from "./dom.js";

const MOST_COLUMNS = 12;

/** isDefault: whether the service asks this model where none is named. */
export function showSnippets(model, isDefault) {
  const service = location.origin + location.pathname.replace(/\/$/, "");
  const row = Object.fromEntries(columnsOf(model).map((column, place) => [column.name, exampleRow(model)[place]]));
  const whole = Object.keys(row).length <= MOST_COLUMNS;
  const named = whole ? JSON.stringify(row) : JSON.stringify(Object.fromEntries(Object.entries(row).slice(0, MOST_COLUMNS))).replace(/\}$/, ", …}");
  const curl = [
    `curl ${service}${isDefault ? "" : `/models/${encodeURIComponent(model.name)}`}/predict \\`,
    `  -H "Authorization: Bearer $KEY" \\`,
    `  -d '${JSON.stringify({ instances: [0] }).replace("0", named.replaceAll("'", "'\\''"))}'`,
  ].join("\n");
  const python = [
    "from dpserve import Client",
    "",
    `with Client(${JSON.stringify(service)}, key${isDefault ? "" : `, model=${JSON.stringify(model.name)}`}) as client:`,
    `    print(client.predict_proba([${whole ? inPython(row) : named}]))`,
  ].join("\n");
  byId("programs-body").replaceChildren(
    el("h2", {}, "curl"),
    code("curl", curl),
    el("h2", {}, "Python"),
    code("Python", python),
    el("p", { class: "note" }, "Put your API key in the place of its name."),
    el(
      "p",
      {},
      el("a", { href: "docs" }, "Every request and answer"),
      ", ",
      el("a", { href: `models/${encodeURIComponent(model.name)}` }, "the model’s certificate"),
      " and ",
      el("a", { href: "openapi.json" }, "the OpenAPI document"),
      ", with the JSON Schema of a row.",
    ),
  );
}

function code(label, text) {
  return el("pre", { class: "document", tabindex: 0, "aria-label": label }, text);
}

function inPython(row) {
  const values = Object.entries(row).map(([name, value]) => `${JSON.stringify(name)}: ${value === true ? "True" : JSON.stringify(value)}`);
  return `{${values.join(", ")}}`;
}
