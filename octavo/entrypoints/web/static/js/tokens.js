// An answer token by token: coloured by probability, alternatives on hover and focus.

import { el, placeBeside } from "./dom.js";
import { number, t } from "./i18n.js";

const STEPS = [0.9, 0.6, 0.3, 0.1];

/** 4 for a token of probability 0.9 and more, down to 0 below 0.1. */
export function shade(p) {
  const step = STEPS.findIndex((least) => p >= least);
  return step < 0 ? 0 : STEPS.length - step;
}

const percent = (logprob) => `${number(100 * Math.exp(logprob), 1)} %`;

/** How a token is written where white space must be seen. */
export const visible = (token) =>
  token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replace(/^ | $/g, "␣") || "∅";

/** The tokens of a message, and what the colours mean. Arrow keys go from one to the next. */
export function tokenView(tokens) {
  const tip = el("div", { class: "tooltip", role: "tooltip", id: "token-tip", hidden: true });
  const spans = tokens.map((token, i) =>
    el(
      "span",
      {
        class: `token p${shade(Math.exp(token.logprob))}`,
        tabindex: i ? "-1" : "0",
        dataset: { i },
      },
      token.token.endsWith("\n")
        ? [
            el("span", { class: "unseen" }, "⏎".repeat(token.token.match(/\n+$/)[0].length)),
            token.token,
          ]
        : token.token,
    ),
  );
  const hide = () => {
    tip.hidden = true;
    tip.remove();
  };
  const show = (span) => {
    const token = tokens[span.dataset.i];
    tip.replaceChildren(
      el("div", {}, t("tokens.chosen", { p: percent(token.logprob) })),
      alternatives(token),
    );
    document.body.append(tip);
    tip.hidden = false;
    placeBeside(tip, span.getBoundingClientRect());
    span.setAttribute("aria-describedby", tip.id);
  };
  const over = (event) => {
    const span = event.target.closest(".token");
    if (span) show(span);
  };
  const view = el(
    "div",
    {
      class: "tokens",
      role: "group",
      "aria-label": t("tokens.label"),
      onmouseover: over,
      onfocusin: over,
      onmouseleave: hide,
      onfocusout: hide,
      onkeydown: (event) => {
        if (event.key === "Escape") hide();
        const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
        const at = event.target.closest(".token");
        const next = step && at && spans[Number(at.dataset.i) + step];
        if (!next) return;
        event.preventDefault();
        at.tabIndex = -1;
        next.tabIndex = 0;
        next.focus();
      },
    },
    spans,
  );
  return [view, keyOfColours()];
}

function alternatives({ token, logprob, top }) {
  const rows = top.some(([text]) => text === token) ? top : [...top, [token, logprob]];
  return el(
    "div",
    { class: "alternatives" },
    rows.flatMap(([text, value]) => {
      const fill = el("div", { class: "fill" });
      fill.style.width = `${100 * Math.exp(value)}%`;
      return [
        el("code", { class: text === token && "chosen" }, visible(text)),
        el("div", { class: "track" }, fill),
        el("span", { class: "number" }, percent(value)),
      ];
    }),
  );
}

function keyOfColours() {
  const words = ["≥ 90 %", "≥ 60 %", "≥ 30 %", "≥ 10 %", "< 10 %"];
  return el(
    "div",
    { class: "key-of-colours" },
    el("span", {}, t("tokens.key")),
    words.map((word, i) => el("span", { class: `token p${4 - i}` }, word)),
  );
}
