// Rows from what people have: fields, pasted rows, CSV files. What cannot be asked about is found before it is sent.

import { BadRows, checkedValue, columnsOf, isNumber, rowFrom } from "./columns.js";

/** Split CSV text into records of text. Quotes may hold separators, quotes ("") and line ends (RFC 4180). */
export function parseCsv(text) {
  const separator = separatorOf(text);
  const records = [];
  let record = [];
  let field = "";
  let quoted = false;
  let line = 1;
  let first = 1;
  const endField = () => {
    record.push(field.trim());
    field = "";
  };
  const endRecord = () => {
    endField();
    if (record.length > 1 || record[0] !== "") records.push({ line: first, fields: record });
    record = [];
    first = line + 1;
  };
  for (let at = 0; at < text.length; at += 1) {
    const character = text[at];
    if (quoted) {
      if (character === '"' && text[at + 1] === '"') {
        field += '"';
        at += 1;
      } else if (character === '"') quoted = false;
      else field += character;
    } else if (character === '"' && field.trim() === "") {
      field = "";
      quoted = true;
    } else if (character === separator) endField();
    else if (character === "\n") endRecord();
    else if (character !== "\r") field += character;
    if (character === "\n") line += 1;
  }
  if (quoted) throw new BadRows(`line ${first}: a quotation mark is never closed`);
  endRecord();
  return records;
}

function separatorOf(text) {
  const [head] = text.split("\n", 1);
  const counts = [",", ";", "\t"].map((separator) => [head.split(separator).length, separator]);
  const [most, separator] = counts.reduce((best, each) => (each[0] > best[0] ? each : best));
  return most > 1 ? separator : /\S\s+\S/.test(head.trim()) ? " " : ",";
}

/** Return a line without the spaces at its ends. An expression for the last ones would look at them once for each. */
function withoutSpaces(line) {
  let [start, end] = [0, line.length];
  while (line[start] === " ") start += 1;
  while (end > start && line[end - 1] === " ") end -= 1;
  return line.slice(start, end);
}

/** Return {rows, ignored}: rows as the service takes them, and the columns that were left out. clip: as for `checkedValue`. */
export function rowsOfText(text, model, clip = false) {
  const columns = columnsOf(model);
  const names = columns.map((column) => column.name);
  const numbers = !model.feature_map.columns?.length;
  const lines = text.replace(/^\uFEFF/, "").split(/([\r\n])/).map(withoutSpaces).join("");
  const records = parseCsv(numbers ? lines.replace(/ {2,}/g, " ") : lines);
  if (records.length === 0) throw new BadRows("There is no row here.");
  const head = records[0].fields;
  if (numbers && head.every(isNumber)) return { rows: records.map((record) => rowOf(record, columns, null, model, clip)), ignored: [] };
  const placeOf = new Map(head.map((name, place) => [name, place]).reverse());
  const places = names.map((name) => placeOf.get(name) ?? -1);
  const missing = names.filter((_, feature) => places[feature] < 0);
  if (missing.length > 0) {
    const some = missing.slice(0, 3).join(", ") + (missing.length > 3 ? ` and ${missing.length - 3} more` : "");
    throw new BadRows(`The first line names the columns, and ${some} is not among them.`);
  }
  const rows = records.slice(1).map((record) => rowOf(record, columns, places, model, clip));
  if (rows.length === 0) throw new BadRows("There is a line of column names, and no row below it.");
  const known = new Set(names);
  return { rows, ignored: head.filter((name) => !known.has(name)) };
}

function rowOf(record, columns, places, model, clip) {
  if (places === null && record.fields.length !== columns.length) {
    throw new BadRows(`Line ${record.line} has ${record.fields.length} values; the model takes ${columns.length}.`);
  }
  const values = columns.map((column, place) =>
    checkedValue(record.fields[places === null ? place : places[place]] ?? "", column, { where: `Line ${record.line}, `, clip }),
  );
  return rowFrom(values, model);
}

export function inBatches(rows, largest) {
  const batches = [];
  for (let start = 0; start < rows.length; start += largest) batches.push(rows.slice(start, start + largest));
  return batches;
}
