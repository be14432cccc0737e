// What /v1/engine/state says, in the shapes that the dashboard draws.

const REF_MASK = 127;
const HASHED = 128;
export const STATES = ["free", "cached", "used", "shared"];
const HISTORY_SECONDS = 65;
const WINDOW_SECONDS = 5;
const GAP_SECONDS = 4.5; // a little less than the engine goes on noting steps

const bytesOf = (text) => Uint8Array.from(atob(text), (c) => c.charCodeAt(0));

/** The map of blocks: reference counts, owners (index of a request, -1 for none), states. */
export function decodeBlocks({ num_blocks: total, flags, owners }) {
  const flagBytes = bytesOf(flags);
  const ownerBytes = bytesOf(owners);
  const view = new DataView(ownerBytes.buffer);
  const count = flagBytes.length;
  const blocks = {
    total,
    count,
    refs: new Uint8Array(count),
    owners: new Int32Array(count),
    states: new Uint8Array(count),
    counts: [0, 0, 0, 0],
  };
  for (let i = 0; i < count; i++) {
    const refs = flagBytes[i] & REF_MASK;
    const state = refs > 1 ? 3 : refs ? 2 : flagBytes[i] & HASHED ? 1 : 0;
    blocks.refs[i] = refs;
    blocks.states[i] = state;
    blocks.owners[i] = view.getInt32(4 * i, true);
    if (i) blocks.counts[state] += 1; // block 0 is nobody's
  }
  return blocks;
}

/** A step as an object; `kinds` are its prefill, decode and draft tokens. */
function decodeStep([id, planned, done, running, waiting, generated, entries]) {
  const kinds = [0, 0, 0];
  const parts = entries.map(([index, ...counts]) => {
    counts.slice(0, 3).forEach((n, i) => (kinds[i] += n));
    return { index, tokens: counts[0] + counts[1] + counts[2], hasOutput: counts[3] };
  });
  const tokens = kinds[0] + kinds[1] + kinds[2];
  return { id, planned, done, running, waiting, generated, parts, kinds, tokens };
}

/** The value below which a share of sorted values lies (nearest rank); null of none. */
export function percentile(sorted, share) {
  if (!sorted.length) return null;
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

/** A hue for a request: far from those of its neighbours, and always the same. */
export const hueOf = (index) => (index * 137.508 + 160) % 360;

/**
 * The steps of the last minute, and what follows from them. An output of a request comes when its
 * step is done: the first one ends the time to the first token, the others the time between tokens.
 */
export class History {
  steps = [];
  #arrivals = new Map();
  #lastOutputs = new Map();
  #latencies = []; // [when, seconds, is it the first]
  #lookedAt = -Infinity;
  #completeSince = 0; // outputs before that were not seen
  #generated = null; // in total, as of the last step; null where that was not seen

  get lastStep() {
    return this.steps.at(-1)?.id ?? -1;
  }

  add({ now, steps, requests, stats }) {
    if (stats && (stats.num_steps ?? 0) <= this.lastStep) this.#forget(); // another engine's
    // Where nobody looked for seconds, steps are missing.
    const isBroken = now - this.#lookedAt > GAP_SECONDS;
    this.#lookedAt = now;
    if (isBroken) {
      this.#completeSince = steps.length ? decodeStep(steps[0]).planned : now;
      this.#lastOutputs.clear();
      this.#generated = steps.length || !stats ? null : (stats.generation_tokens ?? 0);
    }
    for (const { index, arrival } of requests) this.#arrivals.set(index, arrival);
    const known = this.lastStep;
    for (const step of steps.map(decodeStep)) {
      if (step.id <= known) continue;
      step.made = this.#generated === null ? 0 : step.generated - this.#generated;
      this.#generated = step.generated;
      this.steps.push(step);
      for (const { index, hasOutput } of step.parts) if (hasOutput) this.#output(index, step.done);
    }
    const horizon = now - HISTORY_SECONDS;
    while (this.steps.length > 1 && this.steps[0].done < horizon) this.steps.shift();
    while (this.#latencies.length && this.#latencies[0][0] < horizon) this.#latencies.shift();
    const alive = new Set(requests.map(({ index }) => index));
    for (const index of this.#arrivals.keys()) {
      if (!alive.has(index)) {
        this.#arrivals.delete(index);
        this.#lastOutputs.delete(index);
      }
    }
  }

  #forget() {
    this.steps = [];
    this.#arrivals.clear();
    this.#lastOutputs.clear();
    this.#latencies = [];
    this.#lookedAt = -Infinity;
  }

  #output(index, when) {
    const before = this.#lastOutputs.get(index);
    const since = before ?? this.#arrivals.get(index);
    const isWhole = before !== undefined || since >= this.#completeSince;
    this.#lastOutputs.set(index, when);
    if (since && isWhole) this.#latencies.push([when, when - since, before === undefined]);
  }

  /** Per second of the last minute: tokens per second, generated and prefilled. */
  throughput(now, seconds = 60) {
    const rows = Array.from({ length: seconds }, () => [0, 0]);
    for (const step of this.steps) {
      const ago = Math.floor(now - step.done);
      if (ago < 0 || ago >= seconds) continue;
      const row = rows[seconds - 1 - ago];
      row[0] += step.made;
      row[1] += step.kinds[0];
    }
    return rows;
  }

  /** Per second of the last minute: median and 99th percentile of the latencies around it. */
  latencies(now, isFirst, seconds = 60) {
    const mine = this.#latencies.filter(([, , first]) => first === isFirst);
    return Array.from({ length: seconds }, (_, i) => {
      const end = now - (seconds - 1 - i);
      const values = mine
        .filter(([when]) => when <= end && when > end - WINDOW_SECONDS)
        .map(([, value]) => value)
        .sort((a, b) => a - b);
      return [percentile(values, 0.5), percentile(values, 0.99)];
    });
  }
}
