// The dashboard: asks the server what the engine does, twice a second, and draws it.

import { call } from "./api.js";
import { BlockMapView, sample } from "./block_map.js";
import { palette } from "./canvas.js";
import { el, placeBeside } from "./dom.js";
import { History, STATES, decodeBlocks } from "./engine_state.js";
import { number, t, translate } from "./i18n.js";
import { showMemory } from "./memory_plan.js";
import { errorNotice } from "./notice.js";
import { Plot } from "./plot.js";
import { requestRows } from "./request_rows.js";
import { mountShell } from "./shell.js";
import { TimelineView } from "./timeline.js";

const INTERVAL_MS = 500;
const RETRY_MS = 3000;
const MAX_PROMPT = 256; // tokens of the prompts that the button sends, and more
const $ = (id) => document.getElementById(id);

const history = new History();
let state = null;
let blocks = null;
let isPaused = false;
let chosenBlock = null;
let timer = 0;
let isAsking = false;
let isHurried = false; // somebody points at another block

const seconds = (value) =>
  value < 1
    ? t("unit.ms", { n: number(1000 * value, value < 0.01 ? 1 : 0) })
    : t("unit.s", { n: number(value, value < 10 ? 1 : 0) });
const perSecond = (value) => number(value);
const plots = [
  new Plot("throughput", ["generated", "computed"], perSecond),
  new Plot("ttft", ["p50", "p99"], seconds),
  new Plot("itl", ["p50", "p99"], seconds),
];
$("plots").append(...plots.map(({ root }) => root));
mountShell();

// -------------------------------------------------------------------- asking

async function ask() {
  const query = new URLSearchParams({ after_step: history.lastStep });
  const asked = chosenBlock;
  if (asked !== null) query.set("block", asked);
  state = await (await call(`v1/engine/state?${query}`)).json();
  history.add(state.view);
  blocks = decodeBlocks(state.view.blocks);
  if (asked === chosenBlock) showBlock(state.view.block);
}

/** Ask, draw, and come again. One question at a time: answers that overtake others would mislead. */
async function tick() {
  clearTimeout(timer);
  if (isAsking) {
    isHurried = true;
    return;
  }
  isAsking = true;
  let wait = INTERVAL_MS;
  try {
    await ask();
    $("trouble").replaceChildren();
    show();
  } catch (error) {
    wait = RETRY_MS;
    $("trouble").replaceChildren(errorNotice(error));
    $("liveness").textContent = t("dashboard.lost");
  }
  isAsking = false;
  if (isHurried) wait = 0;
  isHurried = false;
  if (!isPaused && !document.hidden) timer = setTimeout(tick, wait);
}

// -------------------------------------------------------------------- showing

function show() {
  if (!state) return;
  $("liveness").textContent = t(isPaused ? "dashboard.paused" : "dashboard.live");
  const { view } = state;
  showFigures(view.stats);
  pool.show(blocks);
  showPoolWords();
  timeline.show(history.steps);
  showShares();
  showStepTable();
  plots[0].show(history.throughput(view.now));
  plots[1].show(history.latencies(view.now, true));
  plots[2].show(history.latencies(view.now, false));
  showRequests(view);
  showMemory(state);
  document.body.dataset.ready = "";
}

function showFigures(stats) {
  const rows = history.throughput(state.view.now, 5).slice(0, 4);
  const speed = rows.reduce((sum, [generated]) => sum + generated, 0) / rows.length;
  const share = (part, whole) => (whole ? `${number((100 * part) / whole, 0)} %` : "–");
  const figures = [
    ["running", number(stats.num_running ?? 0)],
    ["waiting", number(stats.num_waiting ?? 0)],
    ["kv", share(stats.num_used_blocks ?? 0, stats.num_blocks)],
    ["speed", number(speed), t("figure.speed.unit")],
    ["hits", share(stats.prefix_hits ?? 0, stats.prefix_queries)],
    ["preemptions", number(stats.num_preemptions ?? 0)],
  ];
  $("figures").replaceChildren(
    ...figures.map(([name, value, unit]) =>
      el(
        "div",
        { class: "figure" },
        el("dt", {}, t(`figure.${name}`)),
        el("dd", {}, value, unit && " ", unit && el("small", {}, unit)),
      ),
    ),
  );
}

function showPoolWords() {
  const cut =
    blocks.count < blocks.total
      ? ` ${t("pool.cut", { shown: number(blocks.count), all: number(blocks.total) })}`
      : "";
  $("pool-about").textContent = t("pool.about", { size: state.block_size }) + cut;
  const counts = STATES.map((name, i) => [name, number(blocks.counts[i])]);
  if (!$("pool-legend").childElementCount) drawLegend();
  counts.forEach(([name, count]) => ($(`count-${name}`).textContent = count));
  const rows = [
    ...counts.map(([name, count]) => [t(`state.${name}`), count]),
    ...current().map((r) => [r.request_id, number(r.num_blocks)]),
  ];
  $("pool-table").replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        el("th", { scope: "col" }, t("table.what")),
        el("th", { scope: "col" }, t("table.count")),
      ),
    ),
    el(
      "tbody",
      {},
      rows.map(([what, count]) => el("tr", {}, el("td", {}, what), el("td", {}, count))),
    ),
  );
}

function drawLegend() {
  $("pool-legend").replaceChildren(
    ...STATES.map((name) =>
      el(
        "li",
        {},
        el("span", { class: "what" }, sample(name), el("span", { "data-t": `state.${name}` })),
        el("span", { class: "count", id: `count-${name}` }),
      ),
    ),
  );
  translate($("pool-legend"));
}

const current = () => state.view.requests.filter(({ status }) => status !== "finished");

function showBlock(block) {
  if (chosenBlock === null || !block) {
    $("block").replaceChildren(el("p", { class: "soft" }, t("pool.hint")));
    return;
  }
  if (block.block_id === 0) {
    $("block").replaceChildren(el("p", {}, t("block.null")));
    return;
  }
  const names = new Map(state.view.requests.map((r) => [r.index, r.request_id]));
  const holders = block.holders.map(([index, place]) =>
    el("div", {}, swatch(index), ` ${names.get(index) ?? `#${index}`} [${place}]`),
  );
  const name =
    block.ref_cnt > 1 ? "shared" : block.ref_cnt ? "used" : block.hash_prefix ? "cached" : "free";
  const facts = [
    ["state", t(`state.${name}`)],
    ["refs", number(block.ref_cnt)],
    ["hash", block.hash_prefix ? `${block.hash_prefix}…` : t("block.nohash")],
    ["holders", holders.length ? holders : "–"],
  ];
  $("block").replaceChildren(
    el("h4", {}, t("block.title", { id: number(block.block_id) })),
    el(
      "dl",
      {},
      facts.flatMap(([key, value]) => [el("dt", {}, t(`block.${key}`)), el("dd", {}, value)]),
    ),
  );
}

function swatch(index) {
  const square = el("span", { class: "swatch" });
  square.style.background = palette().request(index);
  return square;
}

const KINDS = ["prefill", "decode", "draft"];

/** Of all tokens of the last minute. */
function showShares() {
  const sums = KINDS.map((_, i) => history.steps.reduce((sum, step) => sum + step.kinds[i], 0));
  const all = sums.reduce((sum, count) => sum + count, 0);
  KINDS.forEach((kind, i) => {
    $(`share-${kind}`).textContent = all ? `${number((100 * sums[i]) / all)} %` : "";
  });
}

function stepWords(step) {
  const kinds = KINDS.map(
    (kind, i) => step.kinds[i] && `${t(`kind.${kind}`)} ${number(step.kinds[i])}`,
  );
  return [
    t("step.title", { id: number(step.id) }),
    kinds.filter(Boolean).join(" · "),
    `${t("step.requests")} ${number(step.parts.length)}`,
    `${t("step.time")} ${seconds(step.done - step.planned)}`,
  ];
}

function showStepTable() {
  const isOpen = $("steps-table").closest("details").open;
  if (!isOpen) return;
  const head = [
    t("steps.heading"),
    ...KINDS.map((kind) => t(`kind.${kind}`)),
    t("step.requests"),
    t("step.time"),
  ];
  $("steps-table").replaceChildren(
    el(
      "thead",
      {},
      el(
        "tr",
        {},
        head.map((words) => el("th", { scope: "col" }, words)),
      ),
    ),
    el(
      "tbody",
      {},
      history.steps
        .slice(-20)
        .reverse()
        .map((step) =>
          el(
            "tr",
            {},
            [
              number(step.id),
              ...step.kinds.map((n) => number(n)),
              number(step.parts.length),
              seconds(step.done - step.planned),
            ].map((words) => el("td", {}, words)),
          ),
        ),
    ),
  );
}

function showRequests(view) {
  const rows = requestRows(current(), view.now, { swatch, seconds });
  $("requests").replaceChildren(...rows);
  $("requests").hidden = !current().length;
  const hidden = view.num_hidden_requests;
  const note = hidden
    ? t("requests.hidden", { n: number(hidden) })
    : current().length
      ? ""
      : t("requests.none");
  $("requests-note").hidden = !note;
  $("requests-note").textContent = note;
}

// -------------------------------------------------------------------- what a person does

const tip = el("div", { class: "tooltip", role: "tooltip", hidden: true });
document.body.append(tip);

const pool = new BlockMapView($("pool"), (id) => {
  chosenBlock = id;
  if (id === null) showBlock(null);
  else later();
});

let asking = 0;
/** Ask about a block soon, not for each that the pointer crosses. */
function later() {
  clearTimeout(asking);
  asking = setTimeout(tick, 80);
}

const timeline = new TimelineView($("steps"), (step, x) => {
  tip.hidden = !step;
  if (!step) return;
  const words = stepWords(step);
  tip.replaceChildren(
    el("strong", {}, words[0]),
    ...words.slice(1).map((line) => el("div", {}, line)),
  );
  $("step-said").textContent = words.join(", ");
  const box = $("steps").getBoundingClientRect();
  placeBeside(tip, { left: box.left + x + 12, top: box.top, bottom: box.top });
});

/** Requests that begin alike, so that one can watch sharing. Their answers are not read. */
async function sendLoad() {
  const button = $("load");
  button.disabled = true;
  button.textContent = t("dashboard.loading");
  const shared = "You are a patient teacher who explains how things work, step by step. ".repeat(6);
  const topics = [
    "a printing press",
    "a library",
    "a lighthouse",
    "a clock",
    "a river",
    "a compass",
    "a kite",
    "an echo",
  ];
  const most = Math.max(16, (state?.max_model_len ?? 0) - MAX_PROMPT);
  const requests = topics.map((topic, i) => {
    const max_tokens = Math.min(most, 240 + 40 * i);
    const prompt = `${shared}Explain ${topic}.`;
    return call("v1/completions", {
      body: { model: state?.model, prompt, max_tokens, ignore_eos: true },
    });
  });
  const results = await Promise.allSettled(requests.map(async (r) => (await r).text()));
  const failed = results.find(({ status }) => status === "rejected");
  if (failed) $("trouble").replaceChildren(errorNotice(failed.reason));
  button.disabled = false;
  button.textContent = t("dashboard.load");
}

$("load").addEventListener("click", sendLoad);
$("pause").addEventListener("click", () => {
  isPaused = !isPaused;
  $("pause").dataset.t = isPaused ? "dashboard.resume" : "dashboard.pause";
  $("pause").textContent = t($("pause").dataset.t);
  if (isPaused) show();
  else tick();
});
$("by-request").addEventListener("click", () => {
  timeline.byRequest = !timeline.byRequest;
  $("by-request").setAttribute("aria-pressed", String(timeline.byRequest));
  $("steps-legend").hidden = timeline.byRequest;
  timeline.draw();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && !isPaused) tick();
});
const redraw = () => {
  if (!state) return;
  drawLegend();
  show();
};
document.addEventListener("themechange", redraw);
document.addEventListener("languagechange", redraw);
document.addEventListener("keychange", () => tick());
new ResizeObserver(redraw).observe(document.querySelector("main"));

showBlock(null);
await tick();
