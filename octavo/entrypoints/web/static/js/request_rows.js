// The table of requests: who runs, how far, and why the others wait.

import { el } from "./dom.js";
import { number, t } from "./i18n.js";

const COLUMNS = [
  ["request"],
  ["status"],
  ["progress"],
  ["tokens", "right"],
  ["cached", "right"],
  ["blocks", "right"],
  ["age", "right"],
];

/** Head and body of the table. */
export function requestRows(requests, now, { swatch, seconds }) {
  const head = COLUMNS.map(([name, side]) =>
    el("th", { scope: "col", class: side }, t(`column.${name}`)),
  );
  return [
    el("thead", {}, el("tr", {}, head)),
    el(
      "tbody",
      {},
      requests.map((r) => row(r, now, swatch, seconds)),
    ),
  ];
}

function row(request, now, swatch, seconds) {
  const reason = request.reason ? ` ${t(`reason.${request.reason}`)}` : "";
  const cell = (value) => el("td", { class: "right" }, value);
  return el(
    "tr",
    {},
    el(
      "td",
      {},
      swatch(request.index),
      el("span", { class: "id mono", title: request.request_id }, request.request_id),
    ),
    el(
      "td",
      {},
      el("span", { class: `badge ${request.status}` }, t(`status.${request.status}`)),
      el("span", { class: "soft" }, reason),
    ),
    el("td", {}, progress(request)),
    cell(`${number(request.num_tokens)} / ${number(request.max_num_tokens)}`),
    cell(number(request.num_cached_tokens)),
    cell(number(request.num_blocks)),
    cell(request.arrival ? seconds(Math.max(0, now - request.arrival)) : "–"),
  );
}

/** Computed tokens of the prompt, then of the output, of all that there may be. */
function progress({
  num_computed_tokens: computed,
  num_prompt_tokens: prompt,
  max_num_tokens: most,
  num_tokens: tokens,
}) {
  const share = (count) => `${(100 * count) / Math.max(1, most)}%`;
  const ofPrompt = el("span", { class: "prompt" });
  ofPrompt.style.width = share(Math.min(computed, prompt));
  const ofOutput = el("span", { class: "output" });
  ofOutput.style.width = share(Math.max(0, tokens - prompt));
  const words = `${number(Math.min(computed, prompt))} / ${number(prompt)} + ${number(Math.max(0, tokens - prompt))}`;
  return el("div", { class: "meter", role: "img", "aria-label": words }, ofPrompt, ofOutput);
}
