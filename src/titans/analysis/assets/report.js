// The page: controls, cards, and the five sections, for one run or two side by side.
const root = document.documentElement;
const COMPARE = RUNS.length > 1;
const state = { measure: "loss", layer: -1, head: -1 };
const find = (id) => document.getElementById(id);

function theme(choice) {
  const dark = choice === "dark" || (choice === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  root.dataset.theme = dark ? "dark" : "light";
  root.dataset.choice = choice;
  find("theme").textContent = { auto: "◐ auto", light: "☀ light", dark: "☾ dark" }[choice];
}

function remembered() { try { return localStorage.getItem("theme") || "auto"; } catch { return "auto"; } }

find("theme").addEventListener("click", () => {
  const next = { auto: "dark", dark: "light", light: "auto" }[root.dataset.choice];
  try { localStorage.setItem("theme", next); } catch { /* files opened from disk may have no storage */ }
  theme(next);
  draw();
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { theme(root.dataset.choice); draw(); });
theme(remembered());

function bytes(n) { return n >= 1e6 ? `${(n / 1e6).toFixed(1)} MB` : `${Math.round(n / 1e3)} KB`; }

function header() {
  const names = RUNS.map((run) => escapeHtml(run.name));
  find("title").innerHTML = COMPARE ? `${names[0]} <span>beside</span> ${names[1]}` : `${names[0]}`;
  document.title = `Memory report: ${RUNS.map((run) => run.name).join(" | ")}`;
  const run = RUNS[0];
  find("facts").textContent = COMPARE ? "Two readings side by side; every chart has one scale for both."
    : `${run.variant.toUpperCase()} model, ${run.parameters.toLocaleString("en")} parameters · ${run.tokens.toLocaleString("en")} tokens · chunks of ${run.chunk} · state of ${bytes(run.state_bytes)}`;
  for (const one of RUNS) for (const note of one.notes) find("notes").append(element("p", "note", escapeHtml(COMPARE ? `${one.name}: ${note}` : note)));
  if (DATA.command) find("command").innerHTML = `Made by <code>${escapeHtml(DATA.command)}</code>`;
}

function halfLife(run) {
  const lives = run.layers.map((layer) => layer.half_life).filter((v) => v !== null);
  const oldest = Math.max(0, ...run.layers.map((layer) => layer.oldest_age || 0));
  if (!oldest) return ["–", "nothing was written"];
  if (!lives.length) return [`> ${compact(Math.round(oldest))}`, "tokens: half-life, beyond what this text can show"];
  const age = (v) => (v < 9.95 ? v.toFixed(1) : compact(Math.round(v)));
  const low = age(Math.min(...lives)), all = lives.length === run.layers.length;
  const high = all ? age(Math.max(...lives)) : `> ${age(oldest)}`;
  return [low === high ? low : `${low} to ${high}`, `tokens: half-life of an association${run.layers.length > 1 ? ", by layer" : ""}`];
}

function figures(run) {
  const written = run.layers.reduce((sum, layer) => sum + layer.written_share, 0) / run.layers.length;
  const drift = run.layers.reduce((sum, layer) => sum + layer.drift, 0) / run.layers.length;
  const found = [
    [run.peaks.length ? escapeHtml(run.peaks[0].text || `token ${run.peaks[0].position}`) : "–", run.peaks.length ? `strongest write, at token ${run.peaks[0].position.toLocaleString("en")}` : "nothing was written"],
    [`${show(100 * written)} %`, "of the tokens were written"],
    halfLife(run),
    [show(drift), "drift: how far the weights moved"],
  ];
  if (run.worth) found.push([`${run.worth.gain.frozen > 0 ? "−" : "+"}${show(Math.abs(run.worth.gain.frozen))} nats`, "loss per token, live against frozen: what reading adds"]);
  return found;
}

function cards() {
  const host = find("cards");
  if (!COMPARE) {
    const grid = element("div", "cards");
    for (const [value, label] of figures(RUNS[0])) grid.append(element("div", "card panel", `<b title="${value}">${value}</b><span>${label}</span>`));
    host.append(grid);
    return;
  }
  const [a, b] = RUNS.map(figures), labels = ["strongest write", "tokens written", "half-life", "drift", "loss per token, live against frozen"];
  const facts = (run) => `${run.variant.toUpperCase()}, ${run.parameters.toLocaleString("en")} parameters, ${run.tokens.toLocaleString("en")} tokens`;
  const rows = [["", ...RUNS.map((run, n) => `<span class="run-name"><i>${"AB"[n]}</i>${escapeHtml(run.name)}</span>`)], ["model", ...RUNS.map(facts)], ...a.map((cell, n) => [labels[n], cell[0], b[n] ? b[n][0] : "–"])];
  host.append(element("div", "panel", `<table class="compare">${rows.map((row, n) => `<tr>${row.map((cell, c) => (n && c ? `<td>${cell}</td>` : `<th>${cell}</th>`)).join("")}</tr>`).join("")}</table>`));
}

/** Hosts for one thing per run: one, or two side by side under their names. */
function hosts(id, gridClass) {
  const body = find(id);
  body.innerHTML = "";
  if (!COMPARE) { const grid = element("div", gridClass); body.append(grid); return [grid]; }
  const pair = element("div", "pair");
  body.append(pair);
  return RUNS.map((run, n) => {
    const column = element("div", "", `<p class="run-name"><i>${"AB"[n]}</i>${escapeHtml(run.name)}</p>`), grid = element("div", gridClass.includes("two") ? "grid stack" : gridClass);
    column.append(grid);
    pair.append(column);
    return grid;
  });
}

/** The lines of a quantity for the selection: one per layer, or one per head of a layer. */
function series(run, read) {
  const chosen = memoriesOf(run, state.layer);
  if (chosen.length > 1) return chosen.map((memory, n) => ({ name: `layer ${memory.layer}`, color: lineColor(n, chosen.length), ...read(memory, headsOf(memory, state.head)) }));
  const memory = chosen[0], heads = headsOf(memory, state.head);
  return heads.map((head, n) => ({ name: memory.heads > 1 ? `head ${head}` : `layer ${memory.layer}`, color: lineColor(memory.heads > 1 ? head : n, Math.max(memory.heads, 1)), ...read(memory, [head]) }));
}

function curveReader(name) {
  return (memory, heads) => {
    const curve = memory.curves[name];
    if (!curve) return { x: [], y: [] };
    const chosen = curve.mean.length === 1 ? [0] : heads;
    const y = meanOf(chosen.map((h) => unpack(curve.mean[h])));
    return {
      x: Array.from(y, (_, i) => (i + 0.5) * curve.width), y,
      low: fold(chosen.map((h) => unpack(curve.low[h])), Math.min), high: fold(chosen.map((h) => unpack(curve.high[h])), Math.max),
    };
  };
}

function lifeReader(name) {
  return (memory, heads) => ({ x: memory.life.positions, y: meanOf(heads.map((h) => unpack(memory.life[name][h]))) });
}

/** Charts of several quantities, with one vertical scale for both runs. */
function chartGrid(id, specs) {
  const grids = hosts(id, "grid");
  for (const spec of specs) {
    const all = RUNS.map((run) => series(run, spec.read));
    const range = extent(all.flat(), spec.fromZero);
    grids.forEach((grid, n) => {
      const figure = element("figure", "panel");
      grid.append(figure);
      spec.jobs.push(() => lineChart(figure, { ...spec, series: all[n].filter((s) => s.x.length), range }));
    });
  }
}

function jobsOf(make) {
  const jobs = [];
  make(jobs);
  for (const job of jobs) job();
}

function drawGates(jobs) {
  const specs = [
    { title: "forgetting α", hint: "share forgotten per token", name: "forget_gate" },
    { title: "momentum η", hint: "share of past surprise kept", name: "momentum_decay" },
    { title: "step size θ", hint: "strength of the write", name: "step_size" },
    { title: "surprise", hint: "loss", name: "loss" },
    { title: "write size", hint: "θ × gradient norm", name: "write_size" },
    { title: "written", hint: "share of tokens", name: "written" },
  ];
  if (RUNS.some((run) => run.memories.some((memory) => memory.curves.memory_share))) specs.push({ title: "memory’s share", hint: "of the layer’s output; the rest is attention’s", name: "memory_share", empty: "This variant has no such sum." });
  chartGrid("gates-body", specs.map((spec) => ({ ...spec, read: curveReader(spec.name), fromZero: true, jobs })));
}

function drawLife(jobs) {
  const specs = [
    { title: "norm of the weights", name: "weight_norm" }, { title: "drift", hint: "distance from the initial weights", name: "drift", fromZero: true },
    { title: "norm of the momentum", hint: "past surprise still in motion", name: "momentum_norm", fromZero: true },
    { title: "effective rank of the weights", name: "effective_rank" }, { title: "effective rank of what was written", name: "drift_rank", fromZero: true },
  ];
  chartGrid("life-body", specs.map((spec) => ({ ...spec, read: lifeReader(spec.name), jobs })));
}

function drawForgetting(jobs) {
  const grids = hosts("forgetting-body", "grid two");
  const wide = Math.max(...RUNS.flatMap((run) => run.memories.flatMap((m) => m.forgetting.curves[0].ages)), 1) > 600;
  RUNS.forEach((run, n) => {
    const memory = memoriesOf(run, state.layer)[0], kept = memory.forgetting;
    const index = state.head >= 0 && kept.maps.length > 1 ? state.head + 1 : 0;
    const where = `layer ${memory.layer}${index ? `, head ${state.head}` : memory.heads > 1 ? ", mean of heads" : ""}`;
    const map = element("figure", "panel"), lines = element("figure", "panel");
    grids[n].append(map, lines);
    jobs.push(() => recallMap(map, {
      title: "Recall", hint: `${where}${state.layer < 0 ? " (choose a layer above)" : ""} · a row is an association, a column a moment`, written: kept.written, read: kept.read, values: unpack(kept.maps[index]),
      name: (token) => (token < run.texts.length ? run.texts[token].trim() : ""),
    }));
    const chosen = memoriesOf(run, state.layer), shown = [];
    chosen.forEach((m, k) => {
      const curve = m.forgetting.curves[chosen.length === 1 ? index : 0];
      shown.push({ name: chosen.length > 1 ? `layer ${m.layer}` : "retention", color: lineColor(k, chosen.length), x: curve.ages, y: curve.retention.map((v) => (v === null ? NaN : v)) });
      if (chosen.length === 1) shown.push({ name: "what the forgetting gates alone would leave", color: "var(--faint)", dash: true, x: curve.ages, y: curve.gate_only.map((v) => (v === null ? NaN : v)) });
    });
    const life = chosen.length === 1 ? chosen[0].forgetting.curves[index].half_life : null;
    const count = chosen.reduce((sum, m) => sum + m.forgetting.curves[0].num_probes, 0);
    jobs.push(() => lineChart(lines, {
      title: "Forgetting curve", hint: `retention by age in tokens · ${count} association${count === 1 ? "" : "s"}`, series: shown, xLabel: "age", logX: wide, height: 236,
      range: extent([...shown, { y: [0, 1] }], true), marks: life === null ? [] : [{ x: life, text: `half-life ${life < 9.95 ? life.toFixed(1) : compact(Math.round(life))}` }],
      empty: "Nothing was written, so nothing could be forgotten.",
    }));
  });
}

/** The tokens whose prediction gained most by the memory. */
function helped(run, n) {
  const host = element("p", "helped", "It helped most at "), gains = tokenValues(run, "gain", -1, -1), best = [];
  for (let i = 0; i < gains.length; i++) {
    if (!(gains[i] > 0.01) || (best.length === 8 && gains[i] <= gains[best[7]])) continue;
    best.push(i);
    best.sort((a, b) => gains[b] - gains[a]);
    best.length = Math.min(best.length, 8);
  }
  if (!best.length) { host.textContent = "It helped at no single token that is shown."; return host; }
  for (const token of best) {
    const text = run.texts.length ? run.texts[token].trim() || "␣" : String(run.ids[token]), button = element("button", "", `${escapeHtml(text)}<small>${token.toLocaleString("en")}</small>`);
    button.type = "button";
    button.title = `probability ${show(gains[token])} above that with the memory frozen at its start`;
    button.addEventListener("click", () => { state.measure = "gain"; find("measure").value = "gain"; draw(true); panels[n].goTo(token); find("text").scrollIntoView(); });
    host.append(button, " ");
  }
  return host;
}

/** At most `count` points, each the mean of its neighbours. */
function coarse(xs, ys, count) {
  const step = Math.ceil(ys.length / count), x = [], y = [];
  for (let i = 0; i < ys.length; i += step) {
    const known = [...ys.slice(i, i + step)].filter(Number.isFinite);
    x.push((xs[i] + xs[Math.min(xs.length, i + step) - 1]) / 2);
    y.push(known.length ? known.reduce((a, b) => a + b) / known.length : NaN);
  }
  return { x, y };
}

function drawWorth(jobs) {
  const grids = hosts("worth-body", "grid two");
  const modes = ["live", "frozen", "off"];
  const lines = RUNS.map((run) => !run.worthCurves ? [] : modes.map((mode, n) => {
    const y = unpack(run.worthCurves.loss.mean[n]);
    return { name: mode, color: `var(--${mode})`, ...coarse(Array.from(y, (_, i) => (i + 0.5) * run.worthCurves.loss.width), y, 100) };
  }));
  const range = extent(lines.flat(), false);
  RUNS.forEach((run, n) => {
    const bars = element("figure", "panel"), curve = element("figure", "panel");
    grids[n].append(bars, curve);
    if (!run.worth) { bars.append(element("p", "empty", "Only the memory was traced, without a model.")); return; }
    const top = Math.max(...modes.map((mode) => run.worth.mean_loss[mode]));
    const rows = modes.map((mode) => `<span>${mode}</span><div style="width:${100 * run.worth.mean_loss[mode] / top}%;background:var(--${mode})"></div><span>${show(run.worth.mean_loss[mode], 4)} <small>${show(100 * run.worth.accuracy[mode])} % right</small></span>`).join("");
    bars.append(element("figcaption", "", "<span>Mean loss</span><small>nats per token, and how often the likeliest token was right</small>"), element("div", "bars", rows), element("p", "verdict", escapeHtml(run.worth.verdict)), helped(run, n));
    jobs.push(() => lineChart(curve, { title: "Loss by position", hint: "mean of bins", series: lines[n], range, height: 210 }));
  });
}

const panels = (() => {
  const grids = hosts("text-body", "");
  return RUNS.map((run, n) => new TextPanel(run, grids[n]));
})();

function options(select, entries, chosen) {
  select.innerHTML = "";
  for (const [value, text] of entries) { const option = new Option(text, value); option.selected = String(value) === String(chosen); select.append(option); }
  select.disabled = entries.length < 2;
}

function controls() {
  const names = Object.keys(MEASURES).filter((name) => (name !== "gain" || RUNS.every((run) => run.worthCurves)) && (name !== "memory_share" || RUNS.some((run) => run.memories.some((m) => m.tokens.memory_share))));
  options(find("measure"), names.map((name) => [name, MEASURES[name][0]]), state.measure);
  const layers = [...new Set(RUNS.flatMap((run) => run.memories.map((m) => m.layer)))].sort((a, b) => a - b);
  if (layers.length === 1) state.layer = layers[0];
  options(find("layer"), [...(layers.length > 1 ? [[-1, "all, averaged"]] : []), ...layers.map((layer) => [layer, layer])], state.layer);
  headControl();
  for (const name of ["measure", "layer", "head"]) find(name).addEventListener("change", (event) => {
    state[name] = name === "measure" ? event.target.value : Number(event.target.value);
    if (name === "layer") headControl();
    draw(name === "measure");
  });
}

function headControl() {
  const heads = Math.max(...RUNS.flatMap((run) => memoriesOf(run, state.layer).map((m) => m.heads)));
  if (state.head >= heads || heads === 1) state.head = -1;
  options(find("head"), [[-1, heads > 1 ? "all, averaged" : RUNS.some((run) => !run.byHead) ? "averaged" : "0"], ...(heads > 1 ? [...Array(heads).keys()].map((h) => [h, h]) : [])], state.head);
}

function draw(textOnly = false) {
  find("measure-help").textContent = MEASURES[state.measure][1];
  for (const panel of panels) panel.select(state.measure, state.layer, state.head);
  if (textOnly) return;
  jobsOf((jobs) => { drawGates(jobs); drawLife(jobs); drawForgetting(jobs); drawWorth(jobs); });
  root.dataset.ready = "yes";
}

header();
cards();
controls();
draw();
let resizing = 0;
addEventListener("resize", () => { cancelAnimationFrame(resizing); resizing = requestAnimationFrame(() => draw()); });
