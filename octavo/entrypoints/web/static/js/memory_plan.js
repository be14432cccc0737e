// The memory plan: what was planned at the start, and the engine's limits.

import { el } from "./dom.js";
import { bytes, number, t } from "./i18n.js";

const $ = (id) => document.getElementById(id);

/** Where the memory goes, and what bounds the engine. */
export function showMemory(state) {
  const { available, weights, activations, kv_cache: kv } = state.memory;
  $("memory-about").textContent = t("memory.about", { size: bytes(available) });
  const rest = Math.max(0, available - weights - activations - kv);
  const whole = weights + activations + kv + rest || 1;
  const parts = Object.entries({ weights, activations, kv, rest });
  $("memory").replaceChildren(
    ...parts
      .filter(([name]) => name !== "rest")
      .map(([name, size]) => {
        const part = el("span", { class: name });
        part.style.width = `${(100 * size) / whole}%`;
        return part;
      }),
  );
  const limits = {
    model: state.model,
    seqs: number(state.max_num_seqs),
    tokens: number(state.max_num_batched_tokens),
    length: number(state.max_model_len),
    policy: state.scheduling_policy,
    dtype: state.kv_cache_dtype,
  };
  $("memory-legend").replaceChildren(
    ...parts.map(([name, size]) =>
      el(
        "li",
        {},
        el("span", { class: `swatch ${name}` }),
        t(`memory.${name}`),
        el("span", { class: "count" }, bytes(size)),
      ),
    ),
    ...Object.entries(limits).map(([name, value]) =>
      el("li", {}, t(`limit.${name}`), el("span", { class: "count" }, value)),
    ),
  );
}
