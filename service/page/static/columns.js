// What a row has: the columns of the model's schema, or its features, which are numbers within bounds.

/** A row that cannot be asked about, said so that it can be found. */
export class BadRows extends Error {}

/** Return the columns as the certificate describes them; of a model without a schema, its features as numbers. */
export function columnsOf(model) {
  const { lower, upper, columns } = model.feature_map;
  if (columns?.length) return columns;
  return model.feature_names.map((name, feature) => ({
    name,
    kind: "number",
    minimum: lower[feature],
    maximum: upper[feature],
    required: true,
    missing: [""],
  }));
}

/** Return a row as the service takes it: by name where there is a schema, and otherwise in the features' order. */
export function rowFrom(values, model) {
  if (!model.feature_map.columns?.length) return values;
  return Object.fromEntries(columnsOf(model).map((column, place) => [column.name, values[place]]));
}

/** Return the value that `text` is, null for none, or raise BadRows unless it fits what is declared of the column. */
export function checkedValue(text, column, where = "") {
  const said = text.trim();
  if (said === "" || column.missing.includes(said)) {
    if (!column.required) return null;
    throw new BadRows(`${where}${column.name} is empty; it must be ${expected(column)}.`);
  }
  const found = READERS[column.kind](said, column, text);
  if (found === undefined) throw new BadRows(`${where}${column.name} is ${said.slice(0, 40)}; it must be ${expected(column)}.`);
  return found;
}

export function isNumber(text) {
  return text.trim() !== "" && Number.isFinite(Number(text));
}

const DATE = /^\d{4}-\d\d-\d\d$/;
const DATETIME = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$/;

const number = (said, { minimum, maximum, kind }) => {
  const value = Number(said);
  const fits = isNumber(said) && value >= minimum && value <= maximum && (kind !== "integer" || Number.isInteger(value));
  return fits ? value : undefined;
};

/** Times without an offset are taken for UTC, as the service takes them. */
const instant = (text) => Date.parse(DATE.test(text) ? `${text}T00:00Z` : /(Z|[+-]\d\d:\d\d)$/.test(text) ? text : `${text.replace(" ", "T")}Z`);

const time = (said, { kind, minimum, maximum }) => {
  if (!DATE.test(said) && !(kind === "datetime" && DATETIME.test(said))) return undefined;
  const at = instant(said);
  return at >= instant(minimum) && at <= instant(maximum) ? said : undefined;
};

const READERS = {
  number,
  integer: number,
  boolean: (said, column) => {
    if (said === "true" || column.true.includes(said)) return true;
    return said === "false" || column.false.includes(said) ? false : undefined;
  },
  levels: (said, { levels, unknown }) => (levels.includes(said) || unknown === "coordinate" ? said : undefined),
  date: time,
  datetime: time,
  text: (said, { longest }, text) => (text.length <= longest ? text : undefined),
};

/** What a value must be, in words. */
export function expected(column) {
  const { minimum, maximum } = column;
  switch (column.kind) {
    case "number":
      return `a number from ${minimum} to ${maximum}`;
    case "integer":
      return `a whole number from ${minimum} to ${maximum}`;
    case "boolean":
      return "true or false";
    case "levels":
      return column.unknown === "coordinate" ? "a text" : `one of ${column.levels.slice(0, 12).join(", ")}${column.levels.length > 12 ? ", …" : ""}`;
    case "text":
      return `a text of at most ${column.longest} characters`;
    default:
      return `a ${column.kind === "date" ? "date" : "date and time"} from ${minimum} to ${maximum}`;
  }
}

/** A value that fits, made of what is declared: it says nothing about anybody. */
export function exampleOf(column) {
  switch (column.kind) {
    case "number":
      return (column.minimum + column.maximum) / 2;
    case "integer":
      return Math.round((column.minimum + column.maximum) / 2);
    case "boolean":
      return true;
    case "levels":
      return column.levels[0];
    case "text":
      return "text";
    default:
      return column.minimum;
  }
}

export function exampleRow(model) {
  return columnsOf(model).map(exampleOf);
}
