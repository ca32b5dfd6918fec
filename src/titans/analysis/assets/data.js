"use strict";
// The embedded data: packed arrays are opened when they are first used.
const DATA = JSON.parse(document.getElementById("data").textContent);
const RUNS = DATA.runs;

const HALVES = (() => {
  let table = null;
  return () => {
    if (table) return table;
    table = new Float32Array(65536);
    for (let bits = 0; bits < 65536; bits++) {
      const exponent = (bits >> 10) & 31, fraction = bits & 1023;
      let value = exponent === 31 ? (fraction ? NaN : Infinity)
        : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024);
      table[bits] = bits & 32768 ? -value : value;
    }
    return table;
  };
})();

function bytesOf(text) {
  const raw = atob(text), bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return bytes.buffer;
}

/** A packed array as Float32Array. */
function unpack(packed) {
  if (packed.open) return packed.open;
  let values;
  if (packed.f4 !== undefined) values = new Float32Array(bytesOf(packed.f4));
  else if (packed.f2 !== undefined) {
    const halves = new Uint16Array(bytesOf(packed.f2)), table = HALVES(), factor = 2 ** -packed.scale;
    values = new Float32Array(halves.length);
    for (let i = 0; i < halves.length; i++) values[i] = table[halves[i]] * factor;
  } else values = new Float32Array(packed.n).fill(packed.all === null ? NaN : packed.all);
  return (packed.open = values);
}

/** Mean of several arrays of one length. */
function meanOf(arrays) {
  if (arrays.length === 1) return arrays[0];
  const total = new Float32Array(arrays[0].length);
  for (const array of arrays) for (let i = 0; i < total.length; i++) total[i] += array[i] / arrays.length;
  return total;
}

function fold(arrays, choose) {
  const out = arrays[0].slice();
  for (const array of arrays.slice(1)) for (let i = 0; i < out.length; i++) out[i] = choose(out[i], array[i]);
  return out;
}

const MEASURES = {
  loss: ["surprise: loss", "Every token shaded by surprise: how wrong the memory was about it when it came. Hover for numbers."],
  grad_norm: ["surprise: gradient norm", "Every token shaded by the norm of its gradient: how much the memory wanted to change for it. Hover for numbers."],
  write_size: ["write size", "Every token shaded by what was written of it: step size times gradient norm. Hover for numbers."],
  gain: ["gain of reading", "Every token shaded by what the memory did for the model’s prediction of it: the probability it was given with the memory live, less that with the memory frozen at its start. Orange: it helped; teal: it hurt."],
  memory_share: ["memory’s share", "Every token shaded by the memory’s share in the output of the layer. Hover for numbers."],
};

/** One quantity of the kept tokens, for a selection of layer and head (-1: mean over all). */
function tokenValues(run, name, layer, head) {
  const key = `${name}/${layer}/${head}`;
  run.cache ??= new Map();
  if (run.cache.has(key)) return run.cache.get(key);
  let values;
  if (name === "gain") {
    const [live, frozen] = run.worthCurves.tokens.map(unpack);
    values = live.map((loss, i) => Math.exp(-loss) - Math.exp(-frozen[i]));
  } else if (name === "write_size") {
    const parts = memoriesOf(run, layer).flatMap((memory) => headsOf(memory, head).map((h) => {
      const [step, norm, written] = ["step_size", "grad_norm", "written"].map((n) => unpack(memory.tokens[n][h]));
      return step.map((value, i) => value * norm[i] * written[i]);
    }));
    values = meanOf(parts);
  } else {
    const parts = memoriesOf(run, layer).flatMap((memory) => {
      const channels = memory.tokens[name];
      if (!channels) return [];
      return (channels.length === 1 ? [0] : headsOf(memory, head)).map((h) => unpack(channels[h]));
    });
    values = parts.length ? meanOf(parts) : new Float32Array(run.shown).fill(NaN);
  }
  run.cache.set(key, values);
  return values;
}

function memoriesOf(run, layer) {
  const chosen = run.memories.filter((memory) => layer < 0 || memory.layer === layer);
  return chosen.length ? chosen : run.memories;
}

function headsOf(memory, head) {
  return head >= 0 && head < memory.heads ? [head] : [...Array(memory.heads).keys()];
}

/** A number for people. */
function show(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e5) return compact(value);
  if (size < 1e-3) return value.toExponential(1).replace("e-", "e−").replace("-", "−");
  return Number(value.toPrecision(digits)).toLocaleString("en", { maximumSignificantDigits: digits }).replace("-", "−");
}

function compact(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return `${+(value / 1e6).toPrecision(3)}M`;
  return size >= 1e4 ? `${+(value / 1e3).toPrecision(3)}k` : value.toLocaleString("en");
}

function escapeHtml(text) {
  return text.replace(/[&<>"]/g, (c) => ({ "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" })[c]);
}

function element(tag, className = "", html = "") {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (html) made.innerHTML = html;
  return made;
}
