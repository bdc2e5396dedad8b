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

/**
 * Return the value that `text` is, null for none, or raise BadRows unless it fits what is declared of the column.
 * clip: whether the service is to clip values beyond the bounds to them.
 */
export function checkedValue(text, column, { where = "", clip = false } = {}) {
  const said = text.trim();
  if (said === "" || column.missing.includes(said)) {
    if (!column.required) return null;
    throw new BadRows(`${where}${column.name} is empty; it must be ${expected(column)}.`);
  }
  const found = READERS[column.kind](said, clip ? { ...column, ...UNBOUNDED[column.kind] } : column, text);
  if (found === undefined) throw new BadRows(`${where}${column.name} is ${said.slice(0, 40)}; it must be ${expected(column)}.`);
  return found;
}

export function isNumber(text) {
  return text.trim() !== "" && Number.isFinite(Number(text));
}

const DATE = /^\d{4}-\d\d-\d\d$/;
const DATETIME = /^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:\d\d)?$/;

/** What the bounds of a column are while values beyond them are clipped. */
const UNBOUNDED = {
  number: { minimum: -Infinity, maximum: Infinity },
  integer: { minimum: -Infinity, maximum: Infinity },
  date: { minimum: "0001-01-01", maximum: "9999-12-31" },
  datetime: { minimum: "0001-01-01", maximum: "9999-12-31T23:59:59" },
};

/** Return a number's text with a decimal point and without groups, which have three digits each. */
function plain(said, { decimal = ".", group = "" }) {
  if (decimal === "." && group === "") return said;
  const [whole, ...fraction] = said.split(decimal);
  const groups = group === "" ? [whole] : whole.split(group);
  if (groups.slice(1).some((digits) => !/^\d{3}$/.test(digits)) || [...groups, ...fraction].some((part) => /[.,]/.test(part))) return "";
  return [groups.join(""), ...fraction].join(".");
}

const number = (said, { minimum, maximum, kind, ...signs }) => {
  const text = plain(said, signs);
  const value = Number(text);
  const fits = isNumber(text) && value >= minimum && value <= maximum && (kind !== "integer" || Number.isInteger(value));
  return fits ? value : undefined;
};

/** Times without an offset are taken for UTC, as the service takes them. */
const instant = (text) => Date.parse(DATE.test(text) ? `${text}T00:00Z` : /(Z|[+-]\d\d:\d\d)$/.test(text) ? text : `${text.replace(" ", "T")}Z`);

/** The fewest and the most digits of each part of a pattern of dates. */
const DIGITS = { Y: [4, 4], y: [2, 2], m: [1, 2], d: [1, 2], H: [1, 2], M: [1, 2], S: [1, 2], f: [1, 6] };
const ZONE = /^(?:Z|[+-]\d\d:?\d\d)/;

/** Return the parts of a date by their letters in a pattern, `%d.%m.%Y`; undefined for a text that does not follow it. */
function partsOf(said, pattern) {
  const parts = {};
  let at = 0;
  for (let place = 0; place < pattern.length; place += 1) {
    const letter = pattern[place] === "%" ? pattern[(place += 1)] : "%";
    let end = at;
    if (letter === "%") {
      if (said[at] !== pattern[place]) return undefined;
      end += 1;
    } else if (letter === "z") {
      end += ZONE.exec(said.slice(at))?.[0].length ?? 0;
    } else {
      while (end - at < DIGITS[letter][1] && said[end] >= "0" && said[end] <= "9") end += 1;
    }
    if (end - at < (DIGITS[letter]?.[0] ?? 1)) return undefined;
    parts[letter] = said.slice(at, end);
    at = end;
  }
  return at === said.length ? parts : undefined;
}

/** Return a date that is written by a pattern as ISO 8601 has it; undefined for another text. */
function byPattern(said, pattern) {
  const of = partsOf(said, pattern);
  if (of === undefined) return undefined;
  const two = (name) => (of[name] ?? "0").padStart(2, "0");
  // Years of two digits are those from 1969 on, as the service takes them.
  const year = of.Y ?? (of.y === undefined ? "1900" : `${Number(of.y) < 69 ? 20 : 19}${of.y}`);
  const [month, day] = ["m", "d"].map((name) => (of[name] ?? "1").padStart(2, "0"));
  const zone = (of.z ?? "Z").replace(/^([+-]\d\d)(\d\d)$/, "$1:$2");
  const text = `${year}-${month}-${day}T${two("H")}:${two("M")}:${two("S")}.${(of.f ?? "0").padEnd(6, "0").slice(0, 3)}${zone}`;
  // A day that there is not, as 31.02., would be taken for one of the next month.
  return new Date(`${year}-${month}-${day}T00:00Z`).getUTCDate() === Number(day) ? text : undefined;
}

const time = (said, { kind, minimum, maximum, pattern }) => {
  const written = pattern === undefined || pattern === null ? undefined : byPattern(said, pattern);
  if (written === undefined && !DATE.test(said) && !(kind === "datetime" && DATETIME.test(said))) return undefined;
  const at = instant(written ?? said);
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

/** That value as a person writes it, with the column's decimal sign. */
export function exampleText(column) {
  const value = String(exampleOf(column));
  return typeof exampleOf(column) === "number" ? value.replace(".", column.decimal ?? ".") : value;
}

export function exampleRow(model) {
  return columnsOf(model).map(exampleOf);
}
