// The pages' words: one table per language, of the same keys.

import en from "../i18n/en.js";
import zh from "../i18n/zh-CN.js";
import { load, save } from "./storage.js";

export const TABLES = { en, "zh-CN": zh };
const ATTRIBUTES = { label: "aria-label", title: "title", placeholder: "placeholder" };

let current = chosen();

function chosen() {
  const saved = load("language");
  if (saved in TABLES) return saved;
  for (const wish of navigator.languages ?? []) {
    if (wish.toLowerCase().startsWith("zh")) return "zh-CN";
    if (wish.toLowerCase().startsWith("en")) return "en";
  }
  return "en";
}

export const language = () => current;

/** The words for a key, with {names} filled in. */
export function t(key, values = {}) {
  const words = TABLES[current][key];
  if (words === undefined) throw new Error(`no words for ${key}`);
  return words.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

/** A number as this language writes it. */
export function number(value, digits = 0) {
  return new Intl.NumberFormat(current, {
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  }).format(value);
}

/** Bytes in the unit that suits them. */
export function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let power = 0;
  while (count >= 1024 && power < units.length - 1) {
    count /= 1024;
    power += 1;
  }
  return `${number(count, power && count < 100 ? 1 : 0)} ${units[power]}`;
}

/** Fill in the words of all elements with data-t, data-t-label, data-t-title, data-t-placeholder. */
export function translate(root = document) {
  for (const element of root.querySelectorAll("[data-t]")) {
    element.textContent = t(element.dataset.t);
  }
  for (const [name, attribute] of Object.entries(ATTRIBUTES)) {
    for (const element of root.querySelectorAll(`[data-t-${name}]`)) {
      element.setAttribute(attribute, t(element.getAttribute(`data-t-${name}`)));
    }
  }
}

/** Speak another language from now on; pages listen for "languagechange" on the document. */
export function speak(name) {
  current = name;
  save("language", name);
  apply();
  document.dispatchEvent(new Event("languagechange"));
}

/** Make the document say what language it is in, and say it. */
export function apply() {
  document.documentElement.lang = current;
  document.title = t(document.body.dataset.title);
  translate();
}
