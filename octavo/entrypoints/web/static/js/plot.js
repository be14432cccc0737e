// A plot of two lines over the last minute.

import { palette, prepare } from "./canvas.js";
import { el } from "./dom.js";
import { t } from "./i18n.js";

const HEIGHT = 150;
const FOOT = 18;

export class Plot {
  #rows = [];
  #summary = "";

  /** `name` gives its words (`plot.NAME`), `lines` the keys of the two lines, `written` a value. */
  constructor(name, lines, written) {
    Object.assign(this, { name, lines, written });
    this.canvas = el("canvas", { role: "img" });
    this.values = lines.map(() => el("span", { class: "count" }));
    this.table = el("table");
    const heading = `plot-${name}`;
    this.root = el(
      "section",
      { class: "card", "aria-labelledby": heading },
      el(
        "div",
        { class: "card-head" },
        el("h3", { id: heading, "data-t": `plot.${name}` }),
        el("p", { "data-t": `plot.${name}.about` }),
      ),
      this.canvas,
      el(
        "ul",
        { class: "legend" },
        lines.map((line, i) =>
          el(
            "li",
            {},
            el("span", { class: `line ${"ab"[i]}` }),
            el("span", { "data-t": `plot.${line}` }),
            this.values[i],
          ),
        ),
      ),
      el(
        "details",
        { class: "as-table", ontoggle: () => this.#fillTable() },
        el("summary", { "data-t": "table.show" }),
        el("div", { class: "scroll" }, this.table),
      ),
    );
  }

  /** Show rows of [first, second] per second, the newest last; null where there is no value. */
  show(rows) {
    this.#rows = rows;
    this.draw();
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { context, width } = prepare(this.canvas, HEIGHT);
    const colors = palette();
    const most = niceTop(Math.max(0, ...this.#rows.flat().map((value) => value ?? 0)));
    const room = HEIGHT - FOOT - 18;
    const yOf = (value) => HEIGHT - FOOT - (room * value) / (most || 1);
    const xOf = (i) => (width * i) / Math.max(1, this.#rows.length - 1);
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "bottom";
    for (const share of [0, 0.5, 1]) {
      const y = Math.round(yOf(most * share));
      context.fillStyle = colors.line;
      context.fillRect(0, y, width, 1);
      context.fillStyle = colors["ink-soft"];
      if (share && most) context.fillText(this.written(most * share), 0, y);
    }
    ["kind-decode", "kind-prefill"].forEach((name, line) => {
      context.strokeStyle = colors[name];
      context.lineWidth = 2;
      context.lineJoin = "round";
      context.setLineDash(line ? [5, 4] : []);
      context.beginPath();
      let isOn = false;
      this.#rows.forEach((row, i) => {
        const value = row[line];
        if (value === null) isOn = false;
        else {
          context[isOn ? "lineTo" : "moveTo"](xOf(i), yOf(value));
          if (!isOn) context.lineTo(xOf(i) + 0.5, yOf(value));
          isOn = true;
        }
      });
      context.stroke();
    });
    context.setLineDash([]);
    context.fillStyle = colors["ink-soft"];
    context.fillText(t("plot.ago", { n: this.#rows.length }), 0, HEIGHT);
    context.textAlign = "right";
    context.fillText(t("plot.now"), width, HEIGHT);
    context.textAlign = "left";
    this.#say();
  }

  #say() {
    const last = this.#rows.at(-1) ?? [null, null];
    const [x, y] = last.map((value) => (value === null ? t("plot.none") : this.written(value)));
    [x, y].forEach((words, i) => (this.values[i].textContent = words));
    const [a, b] = this.lines.map((line) => t(`plot.${line}`));
    const summary = t("plot.label", { title: t(`plot.${this.name}`), a, x, b, y });
    if (summary !== this.#summary) this.canvas.setAttribute("aria-label", summary);
    this.#summary = summary;
    this.#fillTable();
  }

  #fillTable() {
    if (!this.root.querySelector("details").open) return;
    const written = (value) => el("td", {}, value === null ? "–" : this.written(value));
    this.table.replaceChildren(
      el(
        "thead",
        {},
        el(
          "tr",
          {},
          el("th", { scope: "col" }, t("table.second")),
          this.lines.map((line) => el("th", { scope: "col" }, t(`plot.${line}`))),
        ),
      ),
      el(
        "tbody",
        {},
        this.#rows
          .map((row, i) =>
            el("tr", {}, el("td", {}, String(this.#rows.length - 1 - i)), row.map(written)),
          )
          .reverse()
          .slice(0, 20),
      ),
    );
  }
}

/** A round number that is not below a value. */
function niceTop(value) {
  if (value <= 0) return 0;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 2.5, 5, 10].map((step) => step * power).find((top) => top >= value);
}
