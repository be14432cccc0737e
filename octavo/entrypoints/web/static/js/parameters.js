// What a request asks for: the form, its limits, and the fields of the body.

import { el } from "./dom.js";
import { t, translate } from "./i18n.js";

/** Each number: its limits, its step, the slider's range, and what the server takes without it. */
const NUMBERS = {
  temperature: { min: 0, step: 0.01, slider: [0, 2], neutral: 1 },
  top_p: { min: 0.001, max: 1, step: 0.001, slider: [0.001, 1], neutral: 1 },
  top_k: { min: 0, max: 2 ** 31 - 1, step: 1, slider: [0, 200], neutral: 0 },
  min_p: { min: 0, max: 1, step: 0.001, slider: [0, 1], neutral: 0 },
  max_tokens: { min: 1, step: 1, slider: [1, 4096], neutral: null },
  seed: { min: 0, max: Number.MAX_SAFE_INTEGER, step: 1 },
  presence_penalty: { min: -2, max: 2, step: 0.01, slider: [-2, 2], neutral: 0 },
  frequency_penalty: { min: -2, max: 2, step: 0.01, slider: [-2, 2], neutral: 0 },
  repetition_penalty: { min: 0.01, max: 10, step: 0.01, slider: [0.5, 2], neutral: 1 },
};
const COMMON = ["temperature", "top_p", "max_tokens"];
const MAX_STOPS = 64;
const MAX_STOP_LENGTH = 4096;
const TOP_LOGPROBS = 8;

const EXAMPLE_SCHEMA = JSON.stringify(
  {
    type: "object",
    properties: {
      name: { type: "string" },
      born: { type: "integer" },
      known_for: { type: "array", items: { type: "string" }, maxItems: 3 },
    },
    required: ["name", "born", "known_for"],
    additionalProperties: false,
  },
  null,
  2,
);

/** What is wrong with a number as it was typed: a key of the tables and its values; null if nothing. */
export function problemOfNumber(name, text, maxTokens = null) {
  if (text === "") return null;
  const value = Number(text);
  const { min, max = name === "max_tokens" ? maxTokens : null, step } = NUMBERS[name];
  if (!Number.isFinite(value)) return ["problem.number", {}];
  if (step === 1 && !Number.isInteger(value)) return ["problem.integer", {}];
  if (value < min || (max !== null && value > max)) {
    return max === null ? ["problem.atLeast", { min }] : ["problem.between", { min, max }];
  }
  return null;
}

/** The same for a list of stop strings, one a line; for a schema; for a list of tools. */
export function problemOfStops(text) {
  const stops = stopsOf(text);
  if (stops.length > MAX_STOPS) return ["problem.stops", { max: MAX_STOPS }];
  if (stops.some((s) => s.length > MAX_STOP_LENGTH))
    return ["problem.stop", { max: MAX_STOP_LENGTH }];
  return null;
}

export function problemOfSchema(text) {
  const [schema, problem] = readJson(text);
  if (problem) return problem;
  const isObject = typeof schema === "object" && schema !== null && !Array.isArray(schema);
  return isObject ? null : ["problem.schema", {}];
}

export function problemOfTools(text) {
  if (!text.trim()) return null;
  const [tools, problem] = readJson(text);
  if (problem) return problem;
  const isGood =
    Array.isArray(tools) && tools.every((tool) => typeof tool?.function?.name === "string");
  return isGood ? null : ["problem.tools", {}];
}

function readJson(text) {
  try {
    return [JSON.parse(text), null];
  } catch (error) {
    return [null, ["problem.json", { why: error.message }]];
  }
}

const stopsOf = (text) =>
  text
    .split("\n")
    .filter(Boolean)
    .map((line) => line.replaceAll("\\n", "\n"));

/** The fields of a request's body. */
export function bodyOf(values) {
  const body = {};
  for (const name of Object.keys(NUMBERS)) {
    if (values[name] !== undefined && values[name] !== "") body[name] = Number(values[name]);
  }
  const stops = stopsOf(values.stop ?? "");
  if (stops.length) body.stop = stops;
  if (values.logprobs) Object.assign(body, { logprobs: true, top_logprobs: TOP_LOGPROBS });
  if (values.format === "object") body.response_format = { type: "json_object" };
  if (values.format === "schema") {
    const schema = JSON.parse(values.schema);
    body.response_format = {
      type: "json_schema",
      json_schema: { name: "answer", strict: true, schema },
    };
  }
  if (values.tools?.trim()) body.tools = JSON.parse(values.tools);
  return body;
}

/** The form. `values` is what it holds, `isValid` whether it may be sent. */
export class ParameterForm {
  #checks = new Map();
  #fields = new Map();
  maxTokens = null;

  constructor(root, changed) {
    this.changed = changed;
    this.values = {};
    const rest = Object.keys(NUMBERS).filter((name) => !COMMON.includes(name));
    root.append(
      this.#text("system", { rows: 3 }),
      el(
        "div",
        { class: "panel" },
        el(
          "div",
          { class: "fields" },
          COMMON.map((n) => this.#number(n)),
        ),
      ),
      section("parameters.more", false, [
        ...rest.map((n) => this.#number(n)),
        this.#text("stop", { rows: 2, check: problemOfStops }),
      ]),
      section("parameters.output", true, [this.#check("logprobs"), ...this.#format()]),
      section("parameters.tools", false, [
        this.#text("tools", { rows: 7, code: true, check: problemOfTools }),
      ]),
    );
    translate(root);
  }

  /** Show the values of a conversation. */
  show(values) {
    this.values = { schema: EXAMPLE_SCHEMA, format: "text", ...values };
    for (const [name, field] of this.#fields) field.show(this.values[name]);
    this.#showSchema();
    this.validate();
  }

  get isValid() {
    return [...this.#checks.values()].every((check) => check());
  }

  /** Check all fields again (a language or a model has changed). */
  validate() {
    for (const check of this.#checks.values()) check();
  }

  #set(name, value) {
    this.values[name] = value;
    this.#checks.get(name)?.();
    this.changed();
  }

  #checked(name, input, problemOf) {
    const problem = el("p", { class: "problem", id: `${name}-problem`, hidden: true });
    this.#checks.set(name, () => {
      const found = problemOf();
      problem.hidden = !found;
      problem.textContent = found ? t(...found) : "";
      input.setAttribute("aria-invalid", String(Boolean(found)));
      if (found) input.setAttribute("aria-describedby", problem.id);
      else input.removeAttribute("aria-describedby");
      return !found;
    });
    return problem;
  }

  #number(name) {
    const { min, step, slider, neutral } = NUMBERS[name];
    const box = el("input", {
      type: "number",
      id: `p-${name}`,
      min,
      step: "any",
      inputmode: step === 1 ? "numeric" : "decimal",
      "data-t-placeholder": "parameters.default",
      oninput: () => this.#changeNumber(name, box.value, field, range),
    });
    const range =
      slider &&
      el("input", {
        type: "range",
        min: slider[0],
        max: slider[1],
        step,
        "data-t-label": `parameter.${name}`,
        oninput: () => {
          box.value = range.value;
          this.#changeNumber(name, range.value, field, range);
        },
      });
    const problem = this.#checked(name, box, () =>
      box.validity.badInput
        ? ["problem.number", {}]
        : problemOfNumber(name, box.value, this.maxTokens),
    );
    const field = el(
      "div",
      { class: "field unset" },
      el("label", {
        for: box.id,
        "data-t": `parameter.${name}`,
        "data-t-title": `about.${name}`,
      }),
      box,
      range,
      problem,
    );
    this.#fields.set(name, {
      show: (value = "") => {
        box.value = value;
        if (range) range.value = value === "" ? (neutral ?? slider[1]) : value;
        field.classList.toggle("unset", value === "");
      },
    });
    return field;
  }

  #changeNumber(name, text, field, range) {
    if (range && text !== "") range.value = text;
    field.classList.toggle("unset", text === "");
    this.#set(name, text);
  }

  #text(name, { rows, code = false, check = null }) {
    const box = el("textarea", {
      id: `p-${name}`,
      rows,
      class: code && "mono",
      spellcheck: code ? "false" : null,
      "data-t-placeholder": `placeholder.${name}`,
      oninput: () => this.#set(name, box.value),
    });
    this.#fields.set(name, { show: (value = "") => (box.value = value) });
    const problem = check && this.#checked(name, box, () => check(box.value));
    return el(
      "div",
      { class: "wide" },
      el("label", { for: box.id, "data-t": `parameter.${name}` }),
      box,
      problem,
    );
  }

  #check(name) {
    const box = el("input", {
      type: "checkbox",
      id: `p-${name}`,
      onchange: () => this.#set(name, box.checked),
    });
    this.#fields.set(name, { show: (value = false) => (box.checked = value) });
    return el("label", { class: "check" }, box, el("span", { "data-t": `parameter.${name}` }));
  }

  #format() {
    const choice = (value) => {
      const input = el("input", {
        type: "radio",
        name: "format",
        value,
        onchange: () => {
          this.#set("format", value);
          this.#showSchema();
          this.validate();
        },
      });
      return [input, el("label", {}, input, el("span", { "data-t": `format.${value}` }))];
    };
    const choices = ["text", "object", "schema"].map(choice);
    this.#fields.set("format", {
      show: (value = "text") =>
        choices.forEach(([input]) => (input.checked = input.value === value)),
    });
    const check = (text) => (this.values.format === "schema" ? problemOfSchema(text) : null);
    this.schema = this.#text("schema", { rows: 12, code: true, check });
    return [
      el(
        "fieldset",
        { class: "choices" },
        el("legend", { class: "label", "data-t": "parameter.format" }),
        choices.map(([, label]) => label),
      ),
      this.schema,
    ];
  }

  #showSchema() {
    this.schema.hidden = this.values.format !== "schema";
  }
}

function section(key, isOpen, fields) {
  return el(
    "details",
    { class: "section", open: isOpen },
    el("summary", { "data-t": key }),
    el("div", { class: "fields" }, fields),
  );
}
