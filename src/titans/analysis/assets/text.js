// The text, shaded. All of it is in the page as plain text (so it can be searched); only the
// blocks in view are broken into tokens.
const BLOCK_CHARACTERS = 600;

/** The words next to a peak. */
function shorten(text, isBefore) {
  const reach = 38;
  if (text.length <= reach) return text;
  return isBefore ? `…${text.slice(-reach)}` : `${text.slice(0, reach)}…`;
}

class TextPanel {
  constructor(run, host) {
    this.run = run;
    this.version = 0;
    this.strip = element("div", "strip");
    this.strip.title = "The whole text at a glance; click to go there";
    this.canvas = element("canvas");
    this.window = element("div", "view");
    this.strip.append(this.canvas, this.window);
    this.ramp = element("div", "ramp");
    this.page = element("div", "page panel");
    this.page.tabIndex = 0;
    const reading = element("div", "reading");
    reading.append(this.page, this.peaks());
    host.append(this.strip, this.ramp, reading);
    this.makeBlocks();
    this.listen();
  }

  textOf(i) { return this.run.texts.length ? this.run.texts[i] : ` ${this.run.ids[i]}`; }

  makeBlocks() {
    this.blocks = [];
    let begin = 0, size = 0;
    for (let i = 0; i < this.run.shown; i++) {
      const text = this.textOf(i);
      size += text.length;
      const full = size >= BLOCK_CHARACTERS && (text.includes("\n") || size >= 1.5 * BLOCK_CHARACTERS || !text.trim() || text.startsWith(" "));
      if (full || i === this.run.shown - 1) { this.blocks.push({ begin, end: i + 1, done: -1 }); begin = i + 1; size = 0; }
    }
    const all = document.createDocumentFragment();
    for (const block of this.blocks) {
      block.row = element("div", "blk");
      block.body = element("div");
      let text = "";
      for (let i = block.begin; i < block.end; i++) text += this.textOf(i);
      block.plain = block.begin ? text.replace(/^ /, "") : text;
      block.body.textContent = block.plain;
      const label = element("span");
      label.textContent = block.begin.toLocaleString("en");
      block.row.append(label, block.body);
      block.row.block = block;
      all.append(block.row);
    }
    this.page.append(all);
    this.visible = new Set();
    this.observer = new IntersectionObserver((entries) => {
      for (const entry of entries) {
        const block = entry.target.block;
        if (entry.isIntersecting) { this.visible.add(block); this.shade(block); }
        else { this.visible.delete(block); block.done = -1; block.body.textContent = block.plain; }
      }
      this.drawWindow();
    }, { root: this.page, rootMargin: "300px" });
    for (const block of this.blocks) this.observer.observe(block.row);
  }

  /** Choose what is shown. */
  select(measure, layer, head) {
    Object.assign(this, { measure, layer, head });
    this.values = tokenValues(this.run, measure, layer, head);
    this.ranked = this.values.filter(Number.isFinite).sort();
    const at = (share) => this.ranked[Math.min(this.ranked.length - 1, Math.floor(share * this.ranked.length))] ?? 0;
    if (measure === "gain") {
      this.low = 0;
      this.high = Math.max(Math.abs(at(0.002)), Math.abs(at(0.998)), 1e-12);
    } else {
      this.low = at(0.25);
      // Where hardly any token has a value at all, the highest is the measure.
      this.high = at(0.998) > this.low ? at(0.998) : Math.max(this.ranked[this.ranked.length - 1] ?? 0, this.low + 1e-12);
    }
    this.version++;
    for (const block of this.visible) this.shade(block);
    this.drawStrip();
    this.drawRamp();
  }

  /** Strength of the colour, -1 to 1. */
  level(value) {
    if (!Number.isFinite(value)) return 0;
    if (this.measure === "gain") return Math.max(-1, Math.min(1, value / this.high));
    return Math.max(0, Math.min(1, (value - this.low) / (this.high - this.low)));
  }

  shade(block) {
    if (block.done === this.version || !this.values) return;
    block.done = this.version;
    let html = "";
    for (let i = block.begin; i < block.end; i++) {
      const level = this.level(this.values[i]), size = Math.abs(level);
      // Space around a word stays unshaded, so that neighbours can be told apart.
      const whole = this.textOf(i), text = whole.trim() || whole, place = whole.indexOf(text);
      const lead = i === block.begin && block.begin ? whole.slice(0, place).replace(/^ /, "") : whole.slice(0, place);
      const classes = [level < 0 ? "n" : "", size > 0.72 ? "h" : "", text.includes("\n") ? "nl" : text === "" ? "part" : "", i === this.marked ? "now" : ""].filter(Boolean).join(" ");
      html += `${lead}<i data-i="${i}"${classes ? ` class="${classes}"` : ""}${size >= 0.01 ? ` style="--a:${size.toFixed(2)}"` : ""}>${escapeHtml(text)}</i>${whole.slice(place + text.length)}`;
    }
    block.body.innerHTML = html;
  }

  drawStrip() {
    const width = Math.max(200, this.strip.clientWidth), height = 46, scale = devicePixelRatio || 1;
    this.canvas.width = width * scale; this.canvas.height = height * scale;
    const paint = this.canvas.getContext("2d");
    paint.scale(scale, scale);
    const hot = cssColor("--hot").split(" ").join(","), cold = cssColor("--cold").split(" ").join(",");
    const count = this.run.shown;
    for (let x = 0; x < width; x++) {
      const from = Math.floor(x * count / width), to = Math.max(from + 1, Math.floor((x + 1) * count / width));
      let best = 0;
      for (let i = from; i < to && i < count; i++) { const level = this.level(this.values[i]); if (Math.abs(level) > Math.abs(best)) best = level; }
      const size = Math.abs(best);
      paint.fillStyle = `rgba(${best < 0 ? cold : hot},${0.25 + 0.75 * size})`;
      paint.fillRect(x, height - 3 - (height - 8) * size, 1, 3 + (height - 8) * size);
    }
    this.drawWindow();
  }

  drawWindow() {
    const top = this.page.scrollTop, bottom = top + this.page.clientHeight;
    let first = null, last = null;
    for (const block of this.visible) {
      const begin = block.row.offsetTop, size = block.row.offsetHeight || 1;
      if (begin + size < top || begin > bottom) continue;
      const from = block.begin + (block.end - block.begin) * Math.max(0, (top - begin) / size);
      const to = block.begin + (block.end - block.begin) * Math.min(1, (bottom - begin) / size);
      first = first === null ? from : Math.min(first, from);
      last = last === null ? to : Math.max(last, to);
    }
    if (first === null) return;
    this.window.style.left = `${100 * first / this.run.shown}%`;
    this.window.style.width = `${100 * (last - first) / this.run.shown}%`;
  }

  drawRamp() {
    const hot = "rgb(var(--hot) / .88)", cold = "rgb(var(--cold) / .8)", clear = "rgb(var(--hot) / 0)";
    this.ramp.innerHTML = this.measure === "gain"
      ? `<span>hurt ${show(-this.high)}</span><i style="background:linear-gradient(90deg,${cold},transparent,${hot})"></i><span>helped ${show(this.high)}</span>`
      : `<span>${show(this.low)}</span><i style="background:linear-gradient(90deg,${clear},${hot})"></i><span>${show(this.high)} and above</span>`;
  }

  /** Bring a token into view and frame it. */
  goTo(token) {
    const block = this.blocks.find((b) => b.begin <= token && token < b.end);
    if (!block) return;
    this.marked = token;
    for (const other of this.visible) { other.done = -1; this.shade(other); }
    this.visible.add(block); block.done = -1; this.shade(block);
    const found = block.body.querySelector(`[data-i="${token}"]`).getBoundingClientRect(), page = this.page.getBoundingClientRect();
    this.page.scrollTop += found.top - page.top - this.page.clientHeight / 2;
  }

  listen() {
    this.page.addEventListener("mousemove", (event) => {
      const token = event.target.closest?.("[data-i]");
      if (token) showTip(event, this.describe(Number(token.dataset.i))); else hideTip();
    });
    this.page.addEventListener("mouseleave", hideTip);
    this.page.addEventListener("scroll", () => { hideTip(); this.drawWindow(); }, { passive: true });
    const tokenAt = (event) => {
      const place = this.strip.getBoundingClientRect();
      return Math.max(0, Math.min(this.run.shown - 1, Math.floor((event.clientX - place.left) / place.width * this.run.shown)));
    };
    const strongestNear = (token) => {
      const reach = Math.ceil(this.run.shown / this.strip.clientWidth);
      let best = token;
      for (let i = token - reach; i <= token + reach; i++) if (Math.abs(this.values[i]) > Math.abs(this.values[best])) best = i;
      return best;
    };
    this.strip.addEventListener("mousemove", (event) => showTip(event, this.describe(strongestNear(tokenAt(event)))));
    this.strip.addEventListener("mouseleave", hideTip);
    this.strip.addEventListener("click", (event) => this.goTo(strongestNear(tokenAt(event))));
  }

  describe(i) {
    const run = this.run, at = (name) => tokenValues(run, name, this.layer, this.head)[i];
    const value = this.values[i];
    let rank = 1;
    if (Number.isFinite(value)) { let low = 0, high = this.ranked.length; while (low < high) { const mid = (low + high) >> 1; if (this.ranked[mid] <= value) low = mid + 1; else high = mid; } rank = this.ranked.length - low + 1; }
    const text = run.texts.length ? run.texts[i].trim() || run.texts[i].replace(/\n/g, "↵").replace(/ /g, "␣") || "part of a character" : `token ${run.ids[i]}`;
    const rows = [
      ["surprise (loss)", show(at("loss"), 4)], ["gradient norm", show(at("grad_norm"), 4)], ["write size", show(at("write_size"), 4)],
      ["forgetting α", show(at("forget_gate"))], ["momentum η", show(at("momentum_decay"))], ["step size θ", show(at("step_size"))],
    ];
    const written = at("written");
    if (written < 1) rows.push(["written", written === 0 ? "no" : `in ${Math.round(100 * written)} % of heads`]);
    if (run.memories.some((m) => m.tokens.memory_share)) rows.push(["memory’s share", show(at("memory_share"))]);
    let html = rows.map(([name, text]) => `<tr><td>${name}</td><td>${text}</td></tr>`).join("");
    if (run.worthCurves) {
      const [live, frozen, off] = run.worthCurves.tokens.map((p) => unpack(p)[i]);
      html += `<tr class="sep"><td>model’s loss: live</td><td>${show(live)}</td></tr><tr><td>frozen / off</td><td>${show(frozen)} / ${show(off)}</td></tr><tr><td>gain of reading</td><td>${show(at("gain"))}</td></tr>`;
    }
    return `<b>${escapeHtml(text)}</b> <small>token ${i.toLocaleString("en")} · ${MEASURES[this.measure][0]}: rank ${rank.toLocaleString("en")} of ${this.ranked.length.toLocaleString("en")}</small><table>${html}</table>`;
  }

  peaks() {
    const panel = element("div", "peaks panel", "<h3>Strongest writes</h3>"), list = element("ol");
    for (const peak of this.run.spots) {
      const words = (peak.texts.length ? peak.texts : peak.ids.map((id) => ` ${id}`)).map((word) => word.replace(/\s+/g, " "));
      const before = words.slice(0, peak.offset).join(""), after = words.slice(peak.offset + 1).join(""), word = words[peak.offset];
      const html = `${escapeHtml(shorten(before, true))}${/^\s/.test(word) ? " " : ""}<mark>${escapeHtml(word.trim() || "␣")}</mark>${escapeHtml(shorten(after, false))}`;
      const item = element("li"), button = element("button", "", `<q>${html.trim()}</q><small>token ${peak.position.toLocaleString("en")} · write ${show(peak.write_size)} · surprise ${show(peak.loss)}</small>`);
      button.type = "button";
      button.disabled = peak.position >= this.run.shown;
      button.addEventListener("click", () => this.goTo(peak.position));
      item.append(button);
      list.append(item);
    }
    panel.append(this.run.spots.length ? list : element("p", "empty", "Nothing was written."));
    return panel;
  }
}
