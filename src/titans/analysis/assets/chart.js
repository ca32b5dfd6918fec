// Small SVG line charts and a map, with a shared tooltip.
const tip = document.getElementById("tip");

function showTip(event, html) {
  tip.innerHTML = html;
  tip.hidden = false;
  const box = tip.getBoundingClientRect(), gap = 14;
  let x = event.clientX + gap, y = event.clientY + gap;
  if (x + box.width > innerWidth - 8) x = Math.max(8, event.clientX - box.width - gap);
  if (y + box.height > innerHeight - 8) y = Math.max(8, event.clientY - box.height - gap);
  tip.style.transform = `translate(${x}px, ${y}px)`;
}

function hideTip() { tip.hidden = true; }

function ticks(low, high, count) {
  const span = high - low || 1, raw = span / count, power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= raw);
  const found = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) found.push(Math.abs(v) < step * 1e-9 ? 0 : v);
  return found;
}

function logTicks(high) {
  const found = [0];
  for (let v = 1; v <= high; v *= 10) found.push(v);
  return found;
}

function extent(series, fromZero) {
  let low = Infinity, high = -Infinity;
  for (const s of series) for (const values of [s.y, s.low, s.high]) if (values)
    for (const v of values) if (Number.isFinite(v)) { if (v < low) low = v; if (v > high) high = v; }
  if (!Number.isFinite(low)) return [0, 1];
  if (fromZero && low > 0) low = 0;
  if (high - low < 1e-12 * Math.max(1, Math.abs(high))) { const pad = Math.abs(high) * 0.1 || 1; if (!(fromZero && low === 0)) low -= pad; high += pad; }
  else { const pad = (high - low) * 0.06; high += pad; if (!(fromZero && low === 0)) low -= pad; }
  return [low, high];
}

/**
 * A line chart in `host`.
 * spec: { title, hint, series: [{name, color, x, y, low, high, dash}], range, xLabel, logX, height, note, marks }
 */
function lineChart(host, spec) {
  host.innerHTML = "";
  host.append(element("figcaption", "", `<span>${spec.title}</span>${spec.hint ? `<small>${spec.hint}</small>` : ""}`));
  const known = spec.series.filter((s) => s.x.length);
  if (!known.length) { host.append(element("p", "empty", spec.empty || "Nothing was measured.")); return; }
  const box = element("div");
  host.append(box);
  const width = Math.max(240, Math.round(host.clientWidth - 32)), height = spec.height || 190;
  const left = 48, right = 8, top = 10, bottom = 24;
  const [low, high] = spec.range || extent(known, spec.fromZero);
  let last = 1;
  for (const s of known) last = Math.max(last, s.x[s.x.length - 1]);
  const squash = spec.logX ? (v) => Math.log10(v + 1) : (v) => v;
  const px = (v) => left + (width - left - right) * squash(v) / squash(last);
  const py = (v) => top + (height - top - bottom) * (1 - (v - low) / (high - low));
  const parts = [];
  for (const v of ticks(low, high, 4)) parts.push(`<line class="rule" x1="${left}" x2="${width - right}" y1="${py(v)}" y2="${py(v)}"/><text x="${left - 7}" y="${py(v) + 4}" text-anchor="end">${show(v)}</text>`);
  for (const v of spec.logX ? logTicks(last) : ticks(0, last, Math.max(2, Math.round(width / 110)))) parts.push(`<text x="${px(v)}" y="${height - 7}" text-anchor="middle">${compact(v)}</text>`);
  parts.push(`<line class="axis" x1="${left}" x2="${width - right}" y1="${height - bottom}" y2="${height - bottom}"/>`);
  for (const v of spec.marks || []) parts.push(`<line class="cross" x1="${px(v.x)}" x2="${px(v.x)}" y1="${top}" y2="${height - bottom}"/><text x="${px(v.x) + 5}" y="${top + 10}">${v.text}</text>`);
  for (const s of known) if (s.low && known.length <= 4) parts.push(`<path d="${band(s, px, py, low, high)}" fill="${s.color}" opacity=".13"/>`);
  for (const s of known) parts.push(`<path d="${line(s, px, py)}" fill="none" stroke="${s.color}" stroke-width="${s.dash ? 1.4 : 1.8}" stroke-linejoin="round" ${s.dash ? 'stroke-dasharray="5 4"' : ""}/>`);
  parts.push(`<g class="hover"></g><rect x="${left}" y="0" width="${width - left - right}" height="${height}" fill="transparent"/>`);
  box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}" role="img" aria-label="${spec.title}">${parts.join("")}</svg>`;
  if (known.length > 1) host.append(element("div", "legend", known.map((s) => `<span><i ${s.dash ? 'class="dash"' : ""} style="background:${s.color}"></i>${s.name}</span>`).join("")));
  const svg = box.firstChild, hover = svg.querySelector(".hover");
  svg.lastChild.addEventListener("mousemove", (event) => {
    const place = svg.getBoundingClientRect(), share = ((event.clientX - place.left) * width / place.width - left) / (width - left - right);
    const wanted = spec.logX ? 10 ** (share * squash(last)) - 1 : share * last;
    const rows = [], dots = [];
    let at = null;
    for (const s of known) {
      const i = nearest(s.x, wanted), value = s.y[i];
      at ??= s.x[i];
      if (Number.isFinite(value)) dots.push(`<circle cx="${px(s.x[i])}" cy="${py(value)}" r="3.4" fill="${s.color}"/>`);
      const range = s.low ? ` <small>(${show(s.low[i])} to ${show(s.high[i])})</small>` : "";
      rows.push(`<tr><td><span class="key" style="background:${s.color}"></span>${s.name || spec.title}</td><td>${show(value, 4)}${range}</td></tr>`);
    }
    hover.innerHTML = `<line class="cross" x1="${px(at)}" x2="${px(at)}" y1="${top}" y2="${height - bottom}"/>${dots.join("")}`;
    showTip(event, `<b>${spec.xLabel || "token"} ${Math.round(at).toLocaleString("en")}</b><table>${rows.join("")}</table>`);
  });
  svg.lastChild.addEventListener("mouseleave", () => { hover.innerHTML = ""; hideTip(); });
}

function nearest(xs, wanted) {
  let low = 0, high = xs.length - 1;
  while (high - low > 1) { const mid = (low + high) >> 1; if (xs[mid] < wanted) low = mid; else high = mid; }
  return wanted - xs[low] < xs[high] - wanted ? low : high;
}

function line(s, px, py) {
  let path = "", open = false;
  for (let i = 0; i < s.x.length; i++) {
    if (!Number.isFinite(s.y[i])) { open = false; continue; }
    path += `${open ? "L" : "M"}${px(s.x[i]).toFixed(1)} ${py(s.y[i]).toFixed(1)}`;
    open = true;
  }
  return path;
}

function band(s, px, py, low, high) {
  const clip = (v) => Math.min(high, Math.max(low, v));
  let up = "", down = "";
  for (let i = 0; i < s.x.length; i++) {
    if (!Number.isFinite(s.low[i])) continue;
    up += `${up ? "L" : "M"}${px(s.x[i]).toFixed(1)} ${py(clip(s.high[i])).toFixed(1)}`;
    down = `L${px(s.x[i]).toFixed(1)} ${py(clip(s.low[i])).toFixed(1)}${down}`;
  }
  return `${up}${down}Z`;
}

function cssColor(name) { return getComputedStyle(document.documentElement).getPropertyValue(name).trim(); }

/** Colour of the n-th of `count` lines: distinct if few, a ramp if many. */
function lineColor(n, count) {
  return count <= 8 ? `var(--s${n})` : `hsl(${Math.round(20 + 260 * n / (count - 1))} 65% 50%)`;
}

/** A map of recall: rows are associations (oldest first), columns are reads. */
function recallMap(host, spec) {
  host.innerHTML = "";
  host.append(element("figcaption", "", `<span>${spec.title}</span><small>${spec.hint}</small>`));
  const { written, read, values } = spec;
  if (!written.length) { host.append(element("p", "empty", "Nothing was written, so there is nothing to ask for.")); return; }
  const width = Math.max(240, Math.round(host.clientWidth - 32)), height = 250, left = 48, bottom = 34, top = 8, right = 8;
  const box = element("div"); box.style.position = "relative"; host.append(box);
  const canvas = element("canvas"), scale = devicePixelRatio || 1, w = width - left - right, h = height - top - bottom;
  canvas.width = w * scale; canvas.height = h * scale;
  Object.assign(canvas.style, { position: "absolute", left: `${left}px`, top: `${top}px`, width: `${w}px`, height: `${h}px`, borderRadius: "4px" });
  const paint = canvas.getContext("2d"), hot = cssColor("--hot").split(" ").join(","), cold = cssColor("--cold").split(" ").join(",");
  paint.scale(scale, scale);
  paint.fillStyle = cssColor("--grid"); paint.globalAlpha = 0.5; paint.fillRect(0, 0, w, h); paint.globalAlpha = 1;
  const end = read[read.length - 1], row = h / written.length;
  for (let p = 0; p < written.length; p++) for (let r = 0; r < read.length; r++) {
    const value = values[p * read.length + r];
    if (!Number.isFinite(value)) continue;
    const from = r ? Math.max(read[r - 1], written[p]) : written[p];
    // Whole device pixels: neighbours must not overlap, their colours are translucent.
    const x = Math.round(w * scale * from / end) / scale, to = Math.round(w * scale * read[r] / end) / scale;
    paint.fillStyle = value < 0 ? `rgba(${cold},${Math.min(1, -value)})` : `rgba(${hot},${Math.min(1, value)})`;
    paint.fillRect(x, p * row, Math.max(to - x, 1 / scale), Math.max(1, row - (row > 6 ? 1 : 0)));
  }
  const parts = [];
  const every = Math.max(1, Math.ceil(written.length / 7));
  for (let p = 0; p < written.length; p += every) parts.push(`<text x="${left - 7}" y="${top + (p + 0.5) * row + 4}" text-anchor="end">${compact(written[p])}</text>`);
  for (const v of ticks(0, end, Math.max(2, Math.round(width / 110)))) parts.push(`<text x="${left + w * v / end}" y="${height - bottom + 15}" text-anchor="middle">${compact(v)}</text>`);
  parts.push(`<text x="${left + w}" y="${height - 3}" text-anchor="end">read at token →</text><text x="0" y="${height - 3}">↑ written at token</text>`);
  parts.push(`<defs><linearGradient id="recall"><stop offset="0" style="stop-color:rgb(var(--hot))" stop-opacity="0"/><stop offset="1" style="stop-color:rgb(var(--hot))"/></linearGradient></defs><text x="${left + w / 2 - 62}" y="${height - 3}">0</text><rect x="${left + w / 2 - 50}" y="${height - 12}" width="100" height="8" rx="4" fill="url(#recall)" stroke="var(--line)"/><text x="${left + w / 2 + 56}" y="${height - 3}">1</text>`);
  box.innerHTML = `<svg viewBox="0 0 ${width} ${height}" height="${height}">${parts.join("")}</svg>`;
  box.append(canvas);
  canvas.addEventListener("mousemove", (event) => {
    const place = canvas.getBoundingClientRect();
    const p = Math.min(written.length - 1, Math.floor((event.clientY - place.top) / place.height * written.length));
    const wanted = (event.clientX - place.left) / place.width * end;
    let r = read.findIndex((position) => position >= wanted);
    if (r < 0) r = read.length - 1;
    const value = values[p * read.length + r];
    const name = spec.name(written[p]);
    showTip(event, `<b>${name ? `“${escapeHtml(name)}” ` : ""}written at ${written[p].toLocaleString("en")}</b><table>${Number.isFinite(value)
      ? `<tr><td>asked at</td><td>${read[r].toLocaleString("en")}</td></tr><tr><td>age</td><td>${(read[r] - 1 - written[p]).toLocaleString("en")}</td></tr><tr><td>recall</td><td>${show(value)}</td></tr>`
      : `<tr><td>not written yet</td><td></td></tr>`}</table>`);
  });
  canvas.addEventListener("mouseleave", hideTip);
}
