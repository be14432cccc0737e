// The last steps as stacked bars: by kind of token, or by request.

import { choosable, palette, prepare } from "./canvas.js";

const HEIGHT = 170;
const FOOT = 18;
const MIN_BAR = 5;
const KINDS = ["kind-prefill", "kind-decode", "kind-draft"];

export class TimelineView {
  #steps = [];
  #shown = [];
  #bar = MIN_BAR;
  #chosen = null; // a step's id
  byRequest = false;

  /** `chosen` hears of the step that a person points at, or null, and where it is. */
  constructor(canvas, chosen) {
    this.canvas = canvas;
    choosable(canvas, {
      at: (x) => this.#shown[Math.floor(x / this.#bar)]?.id ?? null,
      move: (id, key) => {
        const at = this.#shown.findIndex((step) => step.id === id);
        const by = { ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1 }[key];
        const next = at < 0 ? this.#shown.length - 1 : at + by;
        return this.#shown[Math.min(this.#shown.length - 1, Math.max(0, next))]?.id ?? null;
      },
      choose: (id) => {
        this.#chosen = id;
        this.draw();
        const at = this.#shown.findIndex((step) => step.id === id);
        chosen(this.#shown[at] ?? null, at * this.#bar);
      },
    });
  }

  show(steps) {
    this.#steps = steps;
    this.draw();
  }

  draw() {
    if (!this.canvas.clientWidth) return;
    const { context, width } = prepare(this.canvas, HEIGHT);
    const colors = palette();
    const count = Math.min(this.#steps.length, Math.floor(width / MIN_BAR));
    const shown = count ? this.#steps.slice(-count) : [];
    this.#shown = shown;
    this.#bar = Math.min(26, Math.max(MIN_BAR, width / Math.max(1, count)));
    const top = Math.sqrt(Math.max(16, ...shown.map((step) => step.tokens)));
    const room = HEIGHT - FOOT - 8;
    context.font = "11.5px system-ui, sans-serif";
    context.textBaseline = "middle";
    for (const tokens of ticks(top * top)) {
      const y = HEIGHT - FOOT - (room * Math.sqrt(tokens)) / top;
      context.fillStyle = colors.line;
      context.fillRect(0, Math.round(y), width, 1);
    }
    shown.forEach((step, i) => {
      const x = i * this.#bar;
      const whole = (room * Math.sqrt(step.tokens)) / top;
      let y = HEIGHT - FOOT;
      for (const [tokens, color] of this.#stack(step, colors)) {
        const height = (whole * tokens) / step.tokens;
        context.fillStyle = color;
        context.globalAlpha = this.#chosen === null || this.#chosen === step.id ? 1 : 0.45;
        context.fillRect(x, y - height, this.#bar - 1, height);
        y -= height;
      }
      context.globalAlpha = 1;
    });
    for (const tokens of ticks(top * top)) {
      const y = HEIGHT - FOOT - (room * Math.sqrt(tokens)) / top;
      label(context, colors, tokens, width - 4, y);
    }
    context.fillStyle = colors["ink-soft"];
    context.textAlign = "left";
    if (shown.length) {
      context.fillText(`#${shown[0].id}`, 0, HEIGHT - 7);
      context.textAlign = "right";
      context.fillText(
        `#${shown.at(-1).id}`,
        Math.min(width, Math.max(90, shown.length * this.#bar)),
        HEIGHT - 7,
      );
    }
  }

  #stack(step, colors) {
    if (this.byRequest) return step.parts.map((p) => [p.tokens, colors.request(p.index)]);
    return step.kinds.map((tokens, i) => [tokens, colors[KINDS[i]]]);
  }
}

/** A number at the right edge, on a ground of its own. */
function label(context, colors, tokens, x, y) {
  context.textAlign = "right";
  const { width } = context.measureText(tokens);
  context.fillStyle = colors.raised;
  context.globalAlpha = 0.85;
  context.fillRect(x - width - 3, y - 8, width + 6, 16);
  context.globalAlpha = 1;
  context.fillStyle = colors["ink-soft"];
  context.fillText(tokens, x, y);
}

/** Powers of four up to the most tokens of a step. */
function ticks(most) {
  const values = [];
  for (let tokens = 4; tokens <= most; tokens *= 4) values.push(tokens);
  return values.slice(-3);
}
