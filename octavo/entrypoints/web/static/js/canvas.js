// What all drawings share: sharp lines, colours of the theme, a pointer and arrow keys.

import { cssColor } from "./dom.js";
import { hueOf } from "./engine_state.js";

/** Give a canvas as many pixels as the screen has for it. Returns its context and its size. */
export function prepare(canvas, height) {
  const width = canvas.clientWidth;
  const ratio = window.devicePixelRatio || 1;
  canvas.style.height = `${height}px`;
  if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return { context, width, height };
}

let colors = null;

/** The theme's colours as a canvas takes them. */
export function palette() {
  if (!colors) {
    const names = [
      "ink",
      "ink-soft",
      "line",
      "line-strong",
      "sunken",
      "raised",
      "kind-prefill",
      "kind-decode",
      "kind-draft",
    ];
    colors = Object.fromEntries(names.map((name) => [name, cssColor(`--${name}`)]));
    const isDark = matchMedia("(prefers-color-scheme: dark)").matches;
    const theme = document.documentElement.dataset.theme ?? (isDark ? "dark" : "light");
    colors.request = (index) =>
      theme === "dark" ? `oklch(0.72 0.115 ${hueOf(index)})` : `oklch(0.64 0.125 ${hueOf(index)})`;
  }
  return colors;
}

document.addEventListener("themechange", () => (colors = null));

/**
 * Let a person choose things in a canvas: `at(x, y)` gives what is there, `move(chosen, key)` where an
 * arrow key leads, `choose` hears of it (null: nothing).
 */
export function choosable(canvas, { at, move, choose }) {
  let chosen = null;
  const set = (value, event) => {
    if (value === chosen) return;
    chosen = value;
    choose(value, event);
  };
  canvas.addEventListener("pointermove", (event) => set(at(event.offsetX, event.offsetY), event));
  canvas.addEventListener("pointerdown", (event) => set(at(event.offsetX, event.offsetY), event));
  canvas.addEventListener("pointerleave", () => set(null));
  canvas.addEventListener("blur", () => set(null));
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Escape") set(null);
    if (!event.key.startsWith("Arrow")) return;
    event.preventDefault();
    set(move(chosen, event.key));
  });
}
