// The KV pool as a map of blocks.

import { choosable, palette, prepare } from "./canvas.js";
import { el } from "./dom.js";
import { STATES } from "./engine_state.js";

const MAX_HEIGHT = 380;
const MAX_CELL = 28;
const MIN_CELL = 2;

/** Draw one block at a place. The state shows in the shape too, not by colour alone. */
function drawBlock(context, x, y, size, state, owner, refs = 2) {
  const colors = palette();
  const gap = size >= 5 ? 1 : 0;
  const side = size - gap;
  const isFree = state === 0;
  context.fillStyle =
    isFree || state === 1
      ? colors.sunken
      : owner < 0
        ? colors["line-strong"]
        : colors.request(owner);
  context.fillRect(x, y, side, side);
  if (state === 1) {
    context.fillStyle = colors["line-strong"];
    if (size >= 8) {
      context.beginPath(); // a corner folded over: the content is still there
      context.moveTo(x + side, y);
      context.lineTo(x + side, y + side);
      context.lineTo(x, y + side);
      context.fill();
    } else context.fillRect(x, y + side / 2, side, side / 2);
  }
  if (state === 3 && size >= 5) {
    context.fillStyle = colors.raised;
    if (refs > 2 && size >= 14) {
      context.font = `600 ${Math.floor(Math.min(14, size * 0.6))}px system-ui, sans-serif`;
      context.textAlign = "center";
      context.textBaseline = "middle";
      context.fillText(refs > 99 ? "+" : refs, x + side / 2, y + side / 2 + 0.5);
    } else {
      context.beginPath();
      context.arc(x + side / 2, y + side / 2, Math.max(1, side * 0.19), 0, 7);
      context.fill();
    }
  }
}

/** A small picture of a state, for the legend. */
export function sample(state) {
  const canvas = el("canvas", { width: 26, height: 26, "aria-hidden": "true" });
  requestAnimationFrame(() => {
    const context = canvas.getContext("2d");
    context.setTransform(2, 0, 0, 2, 0, 0);
    drawBlock(context, 0, 0, 14, STATES.indexOf(state), 0);
  });
  return canvas;
}

export class BlockMapView {
  #blocks = null;
  #cell = MAX_CELL;
  #columns = 1;
  #chosen = null;

  /** `chosen` hears of the block that a person points at, or null. */
  constructor(canvas, chosen) {
    this.canvas = canvas;
    choosable(canvas, {
      at: (x, y) => {
        const column = Math.floor(x / this.#cell);
        const id = Math.floor(y / this.#cell) * this.#columns + column;
        return column < this.#columns && id < (this.#blocks?.count ?? 0) ? id : null;
      },
      move: (id, key) => {
        const step = {
          ArrowLeft: -1,
          ArrowRight: 1,
          ArrowUp: -this.#columns,
          ArrowDown: this.#columns,
        };
        const last = (this.#blocks?.count ?? 1) - 1;
        return id === null ? 0 : Math.min(last, Math.max(0, id + step[key]));
      },
      choose: (id) => {
        this.#chosen = id;
        this.draw();
        chosen(id);
      },
    });
  }

  show(blocks) {
    this.#blocks = blocks;
    this.draw();
  }

  draw() {
    const blocks = this.#blocks;
    if (!blocks) return;
    const width = this.canvas.clientWidth;
    if (!width) return;
    let cell = Math.floor(Math.sqrt((width * MAX_HEIGHT) / blocks.count));
    cell = Math.min(MAX_CELL, Math.max(MIN_CELL, cell));
    const columns = Math.floor(width / cell);
    const rows = Math.ceil(blocks.count / columns);
    this.#cell = cell;
    this.#columns = columns;
    const { context } = prepare(this.canvas, rows * cell);
    for (let id = 0; id < blocks.count; id++) {
      const x = (id % columns) * cell;
      const y = Math.floor(id / columns) * cell;
      drawBlock(context, x, y, cell, blocks.states[id], blocks.owners[id], blocks.refs[id]);
    }
    if (this.#chosen !== null) {
      context.strokeStyle = palette().ink;
      context.lineWidth = 2;
      const x = (this.#chosen % columns) * cell;
      const y = Math.floor(this.#chosen / columns) * cell;
      context.strokeRect(x - 0.5, y - 0.5, cell, cell);
    }
  }
}
