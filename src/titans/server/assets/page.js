// The page of `titans serve`. Every text of a memory is set as text, never as mark-up.

const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function make(tag, values = {}, ...children) {
  const node = Object.assign(document.createElement(tag), values);
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

function say(text, isBad = false) {
  $("status").textContent = text;
  $("status").className = isBad ? "bad" : "";
}

function report(error) {
  if (error.name !== "AbortError") say(error.message, true);
}

// Calls

function headers(extra = {}) {
  const all = { ...extra };
  if ($("key").value.trim()) all.Authorization = `Bearer ${$("key").value.trim()}`;
  if ($("scope").value.trim()) all["X-Titans-Scope"] = $("scope").value.trim();
  return all;
}

async function open(path, options = {}) {
  const answer = await fetch(path, { ...options, headers: headers(options.headers) });
  if (answer.ok) return answer;
  const body = await answer.json().catch(() => null);
  throw new Error(body?.error?.message ?? `the server answered ${answer.status}`);
}

const get = async (path) => (await open(path)).json();
const post = async (path, body) => (await send(path, body)).json();
const send = (path, body, signal) => open(path, {
  method: "POST", body: JSON.stringify(body), signal,
  headers: { "Content-Type": "application/json" },
});
const idPath = (verb, id) => `v1/memories/${verb}/${encodeURIComponent(id)}`;

async function* lines(answer) {
  let rest = "";
  for await (const text of pieces(answer.body.pipeThrough(new TextDecoderStream()))) {
    const found = (rest + text).split("\n");
    rest = found.pop();
    yield* found.filter((line) => line.trim());
  }
}

async function* pieces(stream) {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    reader.releaseLock();
  }
}

// Tabs

const tabs = [...document.querySelectorAll("[role=tab]")];
const onShow = { timeline: () => showTimeline(), playground: () => showModels() };

function show(tab) {
  for (const other of tabs) {
    const isChosen = other === tab;
    other.setAttribute("aria-selected", isChosen);
    other.tabIndex = isChosen ? 0 : -1;
    $(other.getAttribute("aria-controls")).hidden = !isChosen;
  }
  say("");
  // Not `location.hash = ...`, which takes the focus away.
  window.history.replaceState(null, "", `#${tab.getAttribute("aria-controls")}`);
  onShow[tab.getAttribute("aria-controls")]?.();
}

for (const [place, tab] of tabs.entries()) {
  tab.addEventListener("click", () => show(tab));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const next = tabs[(place + step + tabs.length) % tabs.length];
    next.focus();
    show(next);
  });
}

function onSubmit(id, work) {
  $(id).addEventListener("submit", (event) => {
    event.preventDefault();
    say("");
    work().catch(report);
  });
}

// Memories

function card(memory, { score = null, actions = true } = {}) {
  const notes = make("div", { className: "notes" });
  const note = (text, className = "") => notes.append(make("span", { className }, text));
  note(memory.time.slice(0, 16).replace("T", " "));
  if (memory.speaker) note(memory.speaker);
  if (score !== null) note(`score ${score.toFixed(2)}`);
  const level = make("meter", { min: 0, max: 40, value: memory.surprise, title: "surprise" });
  notes.append(make("span", {}, `surprise ${memory.surprise.toFixed(1)} `, level));
  if (memory.written === false) note("not in the neural memory");
  if (memory.writer) note(`${memory.trust}, by ${memory.writer}`, memory.trust === "trusted" ? "" : "warn");
  if (memory.successor_of) note("updates another");
  if (memory.succeeded_by) note("was updated", "warn");
  if (memory.duplicate_of) note("says the same as another");
  if (memory.duplicates?.length) note(`said ${memory.duplicates.length + 1} times`);
  if (actions) {
    notes.append(
      make("button", { type: "button", onclick: () => explain(memory.id).catch(report) }, "Why"),
      make("button", { type: "button", onclick: () => forgetOne(memory).catch(report) }, "Forget"),
    );
  }
  const item = make("li", { className: "card" }, make("p", {}, memory.passage ?? memory.text), notes);
  if (memory.why) item.append(make("div", { className: "notes" }, memory.why));
  if (memory.explanation) item.append(table(memory.explanation));
  return item;
}

function table(explanation) {
  const rows = Object.entries(explanation)
    .sort((a, b) => Math.abs(b[1].contribution) - Math.abs(a[1].contribution))
    .map(([name, f]) => make("tr", {}, ...[name, f.value.toFixed(3), f.contribution.toFixed(3)].map((text) => make("td", {}, text))));
  const head = make("tr", {}, ...["feature", "value", "contribution"]
    .map((text) => make("th", {}, text)));
  return make("details", {}, make("summary", {}, "Why this score"), make("table", {}, head, ...rows));
}

async function explain(id) {
  const found = await get(idPath("why", id));
  const parts = [make("h2", {}, "Why"), make("p", {}, found.memory.reason)];
  if (found.memory.duplicate_of) {
    const first = await get(idPath("id", found.memory.duplicate_of));
    parts.push(make("h2", {}, "It says the same as"),
      make("ol", { className: "cards" }, card(first, { actions: false })));
  }
  if (found.chain.length > 1) {
    parts.push(make("h2", {}, "Statements that update each other, oldest first"),
      make("ol", { className: "cards chain" },
        ...found.chain.map((memory) => card(memory, { actions: false }))));
  }
  $("reasons").replaceChildren(...parts);
  $("details").showModal();
}

async function forgetOne(memory) {
  await preview({ id: memory.id });
  const forget = make("button", { type: "button" }, "Forget for good");
  forget.onclick = async () => {
    $("details").close();
    await open(idPath("id", memory.id), { method: "DELETE" }).catch(report);
    say("forgotten: 1");
    refresh();
  };
  $("reasons").replaceChildren(make("h2", {}, "Forget this?"),
    make("ol", { className: "cards" }, card(memory, { actions: false })), forget);
  $("details").showModal();
}

function refresh() {
  if (!$("timeline").hidden) showTimeline();
  if (!$("search").hidden && $("query").value) search().catch(report);
}

// Chat

const dialogue = [];
let answering = null;

onSubmit("say", async () => {
  const text = $("message").value.trim();
  if (!text || answering) return;
  $("message").value = "";
  const said = make("p", { className: "said model" });
  const used = make("details", { open: matchMedia("(min-width: 50rem)").matches });
  $("talk").append(make("div", { className: "turn" }, make("p", { className: "said" }, text), said, used));
  answering = new AbortController();
  $("stop").hidden = false;
  const body = { model: "titans", stream: true, messages: [...dialogue, { role: "user", content: text }] };
  if ($("trusted").checked) body.titans = { trust: "trusted" };
  try {
    const answer = await send("v1/chat/completions", body, answering.signal);
    for await (const line of lines(answer)) {
      const data = line.replace(/^data: /, "");
      if (data === "[DONE]") break;
      const event = JSON.parse(data);
      if (event.error) throw new Error(event.error.message);
      if (event.titans) showUsed(used, event.titans);
      said.textContent += event.choices?.[0]?.delta?.content ?? "";
    }
    dialogue.push({ role: "user", content: text }, { role: "assistant", content: said.textContent });
  } finally {
    answering = null;
    $("stop").hidden = true;
    said.scrollIntoView({ block: "nearest" });
  }
});

function showUsed(place, used) {
  const count = used.memories.length;
  const summary = make("summary", {}, `${count} ${count === 1 ? "memory" : "memories"} used; `
    + `surprise ${used.remembered.surprise.toFixed(1)} (${used.remembered.reason})`);
  place.replaceChildren(summary, make("ol", { className: "cards" },
    ...used.memories.map((memory) => card(memory, { score: memory.score }))));
}

$("stop").onclick = () => answering?.abort();
$("message").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    $("say").requestSubmit();
  }
});

// Search

async function search() {
  const asked = { query: $("query").value, k: Number($("k").value), explain: true };
  const found = (await post("v1/memories/recall", asked)).memories;
  $("answers").replaceChildren(...found.map((memory) => card(memory, { score: memory.score })));
  say(`${found.length} found`);
}
onSubmit("ask", search);

// Timeline

let cursor = null;
let shown = [];

async function showTimeline(isMore = false) {
  try {
    const from = isMore && cursor ? `&cursor=${encodeURIComponent(cursor)}` : "";
    const page = await get(`v1/memories?newest_first=true&limit=50${from}`);
    const stats = await get("v1/memories/stats");
    shown = isMore ? [...shown, ...page.memories] : page.memories;
    cursor = page.next;
    $("more").hidden = !cursor;
    $("memories").replaceChildren(...shown.map((memory) => card(memory)));
    $("counts").textContent = `${stats.records} memories in ${stats.scope}, ${stats.duplicates} that `
      + `repeat others, ${stats.successors} that update others`;
    bars($("surprises"), [...shown].reverse());
  } catch (error) {
    report(error);
  }
}

function bars(svg, memories) {
  const top = Math.max(...memories.map((memory) => memory.surprise), 1);
  svg.setAttribute("viewBox", `0 0 ${Math.max(memories.length, 20)} 10`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.replaceChildren(...memories.map((memory, place) => {
    const height = Math.max((10 * memory.surprise) / top, 0.2);
    const bar = document.createElementNS(SVG, "rect");
    for (const [name, value] of Object.entries({ x: place + 0.1, y: 10 - height, width: 0.8, height,
      class: memory.written ? "bar" : "off" })) bar.setAttribute(name, value);
    const title = document.createElementNS(SVG, "title");
    title.textContent = `${memory.surprise.toFixed(1)}: ${memory.text.slice(0, 80)}`;
    bar.append(title);
    return bar;
  }));
}

$("more").onclick = () => showTimeline(true);
onSubmit("remember", async () => {
  await post("v1/memories", { text: $("text").value, speaker: $("speaker").value || null });
  $("text").value = "";
  await showTimeline();
});

// Forget, export, import

const preview = (what) => post("v1/memories/forget", { ...what, preview: true });

onSubmit("forget", async () => {
  const what = $("all").checked ? { all: true } : {};
  for (const [field, id] of Object.entries({ before: "before", after: "after", speaker: "who",
    writer: "writer" })) if ($(id).value && !what.all) what[field] = $(id).value;
  const found = await preview(what);
  const forget = make("button", { type: "button", id: "confirm" }, `Forget ${found.records} for good`);
  forget.onclick = async () => {
    try {
      const done = await post("v1/memories/forget", what);
      say(`forgotten: ${done.records}`);
      $("preview").replaceChildren();
    } catch (error) {
      report(error);
    }
  };
  $("preview").replaceChildren(
    make("p", {}, `${found.records} memories would go, the first of them:`),
    make("ol", { className: "cards" }, ...found.preview.map((m) => card(m, { actions: false }))),
    found.records ? forget : null,
  );
});

$("export").onclick = async () => {
  try {
    const blob = await (await open("v1/memories/export")).blob();
    const link = make("a", { href: URL.createObjectURL(blob), download: "memories.jsonl" });
    link.click();
    URL.revokeObjectURL(link.href);
  } catch (error) {
    report(error);
  }
};

$("file").addEventListener("change", async () => {
  const [file] = $("file").files;
  if (!file) return;
  try {
    say("importing ...");
    const answer = await open("v1/memories/import", {
      method: "POST", body: file, headers: { "Content-Type": "application/x-ndjson" },
    });
    say(`new memories: ${(await answer.json()).imported}`);
  } catch (error) {
    report(error);
  }
  $("file").value = "";
});

// Playground

let reading = null;

async function showModels() {
  try {
    $("now").textContent = `model: ${(await get("v1/playground")).model}`;
  } catch (error) {
    report(error);
  }
}

onSubmit("read", async () => {
  if (reading) return;
  reading = new AbortController();
  $("halt").hidden = false;
  $("tokens").replaceChildren();
  $("curve").replaceChildren();
  $("continued").replaceChildren();
  const seen = [];
  try {
    const body = { text: $("passage").value, prompt: $("prompt").value };
    const answer = await send("v1/playground", body, reading.signal);
    for await (const line of lines(answer)) {
      const event = JSON.parse(line);
      if (event.error) throw new Error(event.error.message);
      for (const name of ["said", "without"]) if (event[name] !== undefined) goOn(name, event[name]);
      for (const token of event.tokens ?? []) {
        seen.push(token);
        const depth = (token.surprise - event.low) / (event.high - event.low || 1);
        const mark = make("span", { className: token.written > 0.5 ? "written" : "" }, token.text);
        mark.style.background = `color-mix(in srgb, var(--mark) ${Math.round(60 * depth)}%, transparent)`;
        mark.title = `surprise ${token.surprise.toFixed(3)}, loss ${token.loss.toFixed(2)}, step `
          + `${token.step_size.toFixed(3)}, kept ${(1 - token.forget_gate).toFixed(3)}`;
        $("tokens").append(mark);
      }
      if (event.tokens) {
        const last = seen.at(-1);
        $("now").textContent = `${seen.length} tokens; surprise ${last.surprise.toFixed(3)}, step `
          + `size ${last.step_size.toFixed(3)}, forget gate ${last.forget_gate.toFixed(3)}, momentum `
          + `${last.momentum_decay.toFixed(3)}, written ${last.written.toFixed(2)}`;
        curve(seen.slice(-400));
      }
    }
  } finally {
    reading = null;
    $("halt").hidden = true;
  }
});
function goOn(name, text) {
  const titles = { said: "With what it has read: ", without: "Without: " };
  let place = $(name);
  if (!place) {
    place = make("span", { id: name });
    $("continued").append(make("p", {}, make("b", {}, titles[name]), $("prompt").value, place));
  }
  place.textContent += text;
}

$("halt").onclick = () => reading?.abort();

function curve(tokens) {
  const svg = $("curve");
  svg.setAttribute("viewBox", `0 0 ${Math.max(tokens.length, 50)} 10`);
  svg.setAttribute("preserveAspectRatio", "none");
  const top = Math.max(...tokens.map((token) => token.surprise), 1e-9);
  const path = document.createElementNS(SVG, "path");
  path.setAttribute("d", "M" + tokens.map((t, i) => `${i} ${10 - (9.5 * t.surprise) / top}`).join("L"));
  svg.replaceChildren(path);
}

// Start

$("access").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("titans", JSON.stringify([$("scope").value, $("key").value]));
  dialogue.length = 0;
  $("talk").replaceChildren();
  say("");
  refresh();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.target.matches("input, textarea")) return;
  event.preventDefault();
  show($("tab-search"));
  $("query").focus();
});
[$("scope").value, $("key").value] = JSON.parse(sessionStorage.getItem("titans") ?? '["", ""]');
const wanted = tabs.find((tab) => tab.getAttribute("aria-controls") === location.hash.slice(1));
if (wanted) show(wanted);
