// The head of both pages: where one is, the language, the theme, the key.

import { keepKey, key, onKeyNeeded } from "./api.js";
import { el, glyph } from "./dom.js";
import { TABLES, apply, language, speak, t, translate } from "./i18n.js";
import { forget, load, save } from "./storage.js";

const THEMES = ["auto", "light", "dark"];
const THEME_GLYPHS = { auto: "auto", light: "sun", dark: "moon" };
const NAMES = { en: "English", "zh-CN": "中文" };

/** Fill the page's <header>; `extra` are controls of the page's own. */
export function mountShell({ extra = [], before = [] } = {}) {
  const page = document.body.dataset.page;
  const link = (name, href) =>
    el("a", { href, "data-t": `nav.${name}`, "aria-current": name === page && "page" });
  const logo = new URL("../img/octavo.svg", import.meta.url).href;
  document
    .querySelector("header.top")
    .append(
      ...before,
      el(
        "a",
        { class: "brand", href: "./", "data-t-label": "nav.home" },
        el("img", { src: logo, alt: "" }),
        el("h1", {}, "Octavo"),
      ),
      el(
        "nav",
        { "data-t-label": "nav.pages" },
        link("playground", "./"),
        link("dashboard", "dashboard"),
      ),
      el("div", { class: "tools" }, ...extra, languageSwitch(), themeSwitch(), keyButton()),
    );
  onKeyNeeded(() => askForKey(true));
  apply();
}

function languageSwitch() {
  const options = Object.keys(TABLES).map((name) =>
    el("option", { value: name, lang: name, selected: name === language() }, NAMES[name]),
  );
  return el(
    "select",
    {
      id: "language",
      "data-t-label": "shell.language",
      onchange: (e) => speak(e.target.value),
    },
    options,
  );
}

function themeSwitch() {
  const button = el("button", { type: "button", class: "icon quiet", id: "theme" });
  const show = (theme) => {
    button.replaceChildren(glyph(THEME_GLYPHS[theme]));
    button.dataset.theme = theme;
    button.dataset.tLabel = button.dataset.tTitle = `shell.theme.${theme}`;
    button.setAttribute("aria-label", t(button.dataset.tLabel));
    button.title = t(button.dataset.tTitle);
  };
  button.addEventListener("click", () => {
    const theme = THEMES[(THEMES.indexOf(button.dataset.theme) + 1) % THEMES.length];
    if (theme === "auto") {
      forget("theme");
      delete document.documentElement.dataset.theme;
    } else {
      save("theme", theme);
      document.documentElement.dataset.theme = theme;
    }
    show(theme);
    document.dispatchEvent(new Event("themechange"));
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    document.dispatchEvent(new Event("themechange")),
  );
  show(document.documentElement.dataset.theme ?? "auto");
  return button;
}

function keyButton() {
  return el(
    "button",
    {
      type: "button",
      class: "icon quiet",
      id: "key",
      "data-t-label": "shell.key",
      "data-t-title": "shell.key",
      onclick: () => askForKey(false),
    },
    glyph("key"),
  );
}

/** Ask a person for the key. Resolves to whether one was given. */
function askForKey(isNeeded) {
  const input = el("input", {
    type: "password",
    id: "key-value",
    autocomplete: "off",
    value: key(),
  });
  const stays = el("input", { type: "checkbox", id: "key-stays", checked: load("key") !== null });
  const dialog = el(
    "dialog",
    { "aria-labelledby": "key-title" },
    el("h2", { id: "key-title", "data-t": "key.title" }),
    el("p", { class: "soft", "data-t": isNeeded ? "key.needed" : "key.why" }),
    el(
      "form",
      { method: "dialog" },
      el("div", {}, el("label", { for: "key-value", "data-t": "key.value" }), input),
      el("label", { class: "check" }, stays, el("span", { "data-t": "key.stays" })),
      el(
        "div",
        { class: "row" },
        el("button", {
          type: "button",
          "data-t": "cancel",
          onclick: () => dialog.close(""),
        }),
        el("button", { class: "primary", value: "use", "data-t": "key.use" }),
      ),
    ),
  );
  translate(dialog);
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      const isGiven = dialog.returnValue === "use";
      if (isGiven) {
        keepKey(input.value.trim(), stays.checked);
        document.dispatchEvent(new Event("keychange"));
      }
      resolve(isGiven);
    }),
  );
}

/** Ask yes or no. */
export function confirmed(question, verb) {
  const dialog = el(
    "dialog",
    { "aria-labelledby": "question" },
    el("h2", { id: "question" }, question),
    el(
      "form",
      { method: "dialog" },
      el(
        "div",
        { class: "row" },
        el("button", { value: "", autofocus: true }, t("cancel")),
        el("button", { class: "primary", value: "yes" }, verb),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  return new Promise((resolve) =>
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    }),
  );
}
