// The page. Names from files are set with textContent only.
import { Chart, short } from "/chart.js";

const $ = (id) => document.getElementById(id);
const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#222222", "#882255", "#999933", "#332288"];
const FIRST_RUNS = 5;
const FIRST_ROWS = 100; // before the curves are there
const MAX_CHARTS = 36;
const MAX_EVENTS = 200;
const state = { runs: new Map(), shown: new Map(), answers: new Map(), charts: new Map(), ranges: new Map(), focus: null, table: null, loading: new Map(), source: null };

function element(tag, text, name) {
  const one = document.createElement(tag);
  if (text !== undefined && text !== null) one.textContent = text;
  if (name) one.className = name;
  return one;
}

async function get(url) {
  const response = await fetch(url);
  if (!response.ok) throw new Error(await response.text());
  return response.json();
}

// Runs

const rows = new Map(); // table rows by key: they are changed, not replaced, so that no click is lost

function drawRuns(most = Infinity) {
  const word = $("find-run").value.toLowerCase();
  const body = $("runs");
  const order = [...state.runs.values()];
  order.sort((a, b) => (b.status === "running") - (a.status === "running") || (b.started ?? "").localeCompare(a.started ?? "") || a.label.localeCompare(b.label));
  for (const [key, row] of rows) if (!state.runs.has(key)) { row.remove(); rows.delete(key); }
  let place = body.firstChild;
  for (const run of order.slice(0, most)) {
    let row = rows.get(run.key);
    if (!row) {
      row = element("tr");
      row.dataset.key = run.key;
      const cell = element("td"), button = element("button", null, "dot");
      button.type = "button";
      cell.append(button);
      row.append(cell, element("td", null, "name"), element("td"), element("td", null, "number"), element("td"));
      rows.set(run.key, row);
    }
    const [first, name, status, step, best] = row.children;
    const colour = state.shown.get(run.key);
    first.firstChild.style.background = colour ?? "transparent";
    first.firstChild.setAttribute("aria-pressed", String(colour !== undefined));
    first.firstChild.setAttribute("aria-label", `show ${run.label}`);
    set(name, run.label);
    name.title = run.label;
    set(status, run.status);
    status.className = run.status;
    set(step, run.step ?? "");
    set(best, run.best ? `${run.best.metric} ${typeof run.best.value === "number" ? short(run.best.value) : run.best.value}` : "");
    row.classList.toggle("focused", run.key === state.focus);
    row.hidden = word !== "" && !`${run.label} ${run.name}`.toLowerCase().includes(word);
    if (row !== place) body.insertBefore(row, place); else place = place.nextSibling;
  }
  $("count").textContent = `${state.runs.size} ${state.runs.size === 1 ? "run" : "runs"}`;
}

function set(cell, text) {
  if (cell.textContent !== String(text)) cell.textContent = text;
}

function show(key) {
  const used = new Set(state.shown.values());
  state.shown.set(key, COLOURS.find((one) => !used.has(one)) ?? COLOURS[state.shown.size % COLOURS.length]);
}

$("runs").addEventListener("click", (event) => {
  const key = event.target.closest("tr")?.dataset.key;
  if (!key) return;
  if (event.target.closest("button") && state.shown.has(key)) {
    state.shown.delete(key);
    state.answers.delete(key);
  } else if (!state.shown.has(key)) show(key);
  if (key !== state.focus) $("media").replaceChildren();
  state.focus = key;
  drawRuns();
  drawCharts();
  loadRun();
  if (state.shown.has(key)) loadCurves(key);
  listen();
});

// Curves

async function loadCurves(key) {
  if (state.loading.has(key)) { state.loading.set(key, true); return; } // once more when this one is here
  state.loading.set(key, false);
  try {
    const pixels = Math.max(100, Math.round($("charts").clientWidth / Math.max(1, Math.floor($("charts").clientWidth / 390))));
    const answer = await get(`/api/run/${key}/series?px=${pixels}`);
    for (const [id, range] of state.ranges) {
      const [name, at] = JSON.parse(id);
      const query = new URLSearchParams({ name, from: range[0], to: range[1], px: pixels });
      const part = await get(`/api/run/${key}/series?${query}`);
      answer.curves = answer.curves.filter((curve) => curve.name !== name || curve.at !== at).concat(part.curves.filter((curve) => curve.at === at));
    }
    if (state.shown.has(key)) state.answers.set(key, answer);
    drawCharts();
    if (!answer.preview && answer.complete < 1) state.loading.set(key, true);
  } catch (error) {
    $("connection").textContent = `curves: ${error.message}`;
  } finally {
    const again = state.loading.get(key);
    state.loading.delete(key);
    if (again) setTimeout(() => loadCurves(key), 250);
  }
}

function drawCharts() {
  const word = $("find-metric").value.toLowerCase();
  const groups = new Map();
  for (const [key, colour] of state.shown) {
    const answer = state.answers.get(key);
    for (const curve of answer?.curves ?? []) {
      const title = curve.at === "step" ? curve.name : `${curve.name} (${curve.at})`;
      if (word && !title.toLowerCase().includes(word)) continue;
      const id = JSON.stringify([curve.name, curve.at]);
      if (!groups.has(id)) groups.set(id, { title, curves: [] });
      groups.get(id).curves.push({ ...curve, colour, key, answer, label: state.runs.get(key)?.label ?? "" });
    }
  }
  const ids = [...groups.keys()].sort((a, b) => rank(a) - rank(b) || inOrder(a).localeCompare(inOrder(b))).slice(0, MAX_CHARTS);
  for (const [id, one] of state.charts) if (!ids.includes(id)) { one.chart.remove(); one.box.remove(); state.charts.delete(id); }
  ids.forEach((id, place) => drawChart(id, groups.get(id), place));
}

function rank(id) {
  const [name] = JSON.parse(id);
  if (/^(train[-_/])?loss$/.test(name)) return 0;
  if (/^val(idation)?[-_/]loss$/.test(name)) return 1;
  if (/^val/.test(name)) return 2;
  return /^(learning_rate|lr)/.test(name) ? 4 : 3;
}

// Curves of steps come before those of epochs.
function inOrder(id) {
  const [name, at] = JSON.parse(id);
  return `${name} ${at === "step" ? 0 : 1}`;
}

function drawChart(id, { title, curves }, place) {
  let one = state.charts.get(id);
  if (!one) {
    const box = element("div", null, "chart"), head = element("h3"), badge = element("span", "", "badge"), link = element("a", "CSV"), canvas = element("canvas"), note = element("p");
    head.append(element("span", title), badge, link);
    box.append(head, canvas, note);
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `curves of ${title}`);
    one = { box, badge, link, note, chart: new Chart(canvas, (range) => zoom(id, range)) };
    one.chart.read = (x) => { one.note.textContent = x === null ? "" : reading(one, x); };
    state.charts.set(id, one);
  }
  one.box.dataset.metric = title;
  if ($("charts").children[place] !== one.box) $("charts").insertBefore(one.box, $("charts").children[place] ?? null);
  const preview = curves.some((curve) => curve.answer.preview);
  const exact = curves.every((curve) => curve.exact);
  const read = Math.min(...curves.map((curve) => curve.answer.complete));
  one.badge.textContent = preview ? `preview, ${Math.floor(read * 100)} % read` : exact ? "" : "reading …";
  one.badge.hidden = exact;
  one.box.dataset.exact = String(exact);
  one.box.dataset.high = String(Math.max(...curves.map((curve) => curve.hi.reduce((most, value) => (value !== null && value > most ? value : most), -Infinity))));
  const focused = curves.find((curve) => curve.key === state.focus) ?? curves[0];
  one.link.href = `/api/run/${focused.key}/curve.csv?${new URLSearchParams({ name: focused.name, at: focused.at })}`;
  one.chart.show(curves, { log: $("log-scale").checked, time: $("x-axis").value === "time", range: state.ranges.get(id) ?? null });
}

function reading(one, x) {
  const texts = [];
  for (const curve of one.chart.curves) {
    const xs = one.chart.xs(curve);
    let i = xs.findLastIndex((value) => value <= x);
    if (i < 0) i = 0;
    if (!xs.length || curve.mean[i] === null) continue;
    const spread = curve.lo[i] === curve.hi[i] ? "" : ` (${short(curve.lo[i])} to ${short(curve.hi[i])})`;
    texts.push(`${curve.label}: ${short(curve.mean[i])}${spread} at step ${curve.x[i]}`);
  }
  return texts.slice(0, 4).join(" · ");
}

function zoom(id, range) {
  if (range) state.ranges.set(id, [Math.floor(range[0]), Math.ceil(range[1])]); else state.ranges.delete(id);
  for (const key of state.shown.keys()) loadCurves(key);
}

// The focused run

let asked = 0;

async function loadRun() {
  const key = state.focus, number = ++asked;
  if (!key) return;
  let run;
  try {
    run = await get(`/api/run/${key}`);
  } catch (error) {
    $("state").textContent = error.message;
    return;
  }
  if (number !== asked) return;
  $("name").textContent = run.name;
  drawState(run);
  drawControls(run.control);
  $("events").replaceChildren(...run.events.reverse().map(eventLine));
  section("checkpoints", run.checkpoints.reverse().map((one) => [one.name, one.problem || one.tags.join(", ")]));
  section("settings", Object.entries({ ...run.run.config, ...run.run.hyper }));
  const costs = Array.isArray(run.run.costs) ? run.run.costs : [];
  section("costs", costs.map((one) => [`${one?.callback}.${one?.point}`, `${one?.calls} calls, ${short(Number(one?.seconds))} s`]));
}

function drawState(run) {
  const where = [run.epoch === null ? "" : `epoch ${run.epoch}${run.epochs === null ? "" : ` of ${run.epochs}`}`, run.step === null ? "" : `step ${run.step}`];
  set($("state"), [run.status, ...where, run.reason].filter(Boolean).join(", "));
}

let waiting = null;

// Read the focused run again, at most once a second.
function refreshRun() {
  waiting ??= setTimeout(() => { waiting = null; loadRun(); }, 1000);
}

function section(id, pairs) {
  $(id).hidden = !pairs.length;
  $(id).querySelector("tbody").replaceChildren(...pairs.map(([name, value]) => pair(name, text(value))));
}

const text = (value) => (typeof value === "string" ? value : JSON.stringify(value));

function pair(name, value) {
  const row = element("tr");
  row.append(element("td", name), element("td", value));
  return row;
}

function eventLine(event) {
  const time = new Date(event.time * 1000);
  const clock = Number.isNaN(time.getTime()) ? "" : time.toLocaleTimeString();
  return element("li", `${clock} step ${event.step}: ${event.text}`);
}

// Images and histograms: the newest of each name

$("load-media").addEventListener("click", async () => {
  const key = state.focus;
  if (!key) return;
  $("media").replaceChildren(element("p", "reading …"));
  try {
    const { media } = await get(`/api/run/${key}/media`);
    const newest = new Map(media.map((one) => [JSON.stringify([one.kind, one.name]), one]));
    const figures = await Promise.all([...newest.values()].slice(0, MAX_CHARTS).map((one) => figure(key, one)));
    if (key === state.focus) $("media").replaceChildren(...(figures.length ? figures : [element("p", "none")]));
  } catch (error) {
    $("media").replaceChildren(element("p", error.message, "error"));
  }
});

async function figure(key, one) {
  const box = element("figure"), query = new URLSearchParams({ name: one.name, step: one.step });
  box.append(element("figcaption", `${one.name}, step ${one.step}`));
  if (one.kind === "image") {
    const image = element("img");
    image.alt = one.name;
    image.src = `/api/run/${key}/image?${query}`;
    box.append(image);
  } else {
    const canvas = element("canvas"), { counts } = await get(`/api/run/${key}/histogram?${query}`);
    const g = canvas.getContext("2d"), most = Math.max(...counts, 1), width = canvas.width / Math.max(1, counts.length);
    g.fillStyle = COLOURS[0];
    counts.forEach((count, i) => g.fillRect(i * width, canvas.height * (1 - count / most), Math.max(1, width - 1), canvas.height * (count / most)));
    box.append(canvas);
  }
  return box;
}

// Controls

const ACTIONS = { pause: "Pause", resume: "Resume", save: "Save", validate: "Validate", stop: "Stop" };

function drawControls(control) {
  $("controls").hidden = !control;
  if (!control) return;
  $("paused").hidden = !control.paused;
  keyed($("knobs"), "knob", control.knobs, (knob) => knob.name, knobRow, updateKnob);
  const known = Object.keys(ACTIONS).filter((name) => control.commands.includes(name));
  keyed($("actions"), "do", known, (name) => name, actionButton, (button, name) => {
    button.disabled = (name === "pause" && control.paused) || (name === "resume" && !control.paused);
  });
}

// Elements are changed, not replaced: a click or a text that is being typed is not lost.
function keyed(parent, field, items, keyOf, create, update) {
  const before = new Map([...parent.children].map((one) => [one.dataset[`${field}Key`], one]));
  const after = items.map((item) => {
    const one = before.get(keyOf(item)) ?? create(item);
    one.dataset[`${field}Key`] = keyOf(item);
    update(one, item);
    return one;
  });
  if (after.length !== parent.children.length || after.some((one, place) => parent.children[place] !== one)) parent.replaceChildren(...after);
}

function actionButton(name) {
  const button = element("button", ACTIONS[name]);
  button.type = "button";
  button.dataset.do = name;
  return button;
}

function updateKnob(label, knob) {
  const input = label.querySelector("input, select");
  if (input === document.activeElement) return;
  input.dataset.was = JSON.stringify(knob.value);
  const shown = knob.choices?.length ? JSON.stringify(knob.value) : String(knob.value);
  if (input.value !== shown) input.value = shown;
}

function knobRow(knob) {
  const label = element("label"), input = element(knob.choices?.length ? "select" : "input");
  for (const choice of knob.choices ?? []) { const option = element("option", String(choice)); option.value = JSON.stringify(choice); input.append(option); }
  input.dataset.knob = knob.name;
  input.dataset.type = knob.type;
  if (knob.about) label.title = knob.about;
  label.append(element("span", knob.name), input);
  return label;
}

function typed(input) {
  if (input.tagName === "SELECT") return JSON.parse(input.value);
  if (input.dataset.type === "str") return input.value;
  if (input.dataset.type === "bool") return input.value === "true";
  return Number(input.value);
}

async function command(what, args, expect) {
  const key = state.focus;
  tell("", `${what} …`);
  try {
    const response = await fetch(`/api/run/${key}/control`, { method: "POST", headers: { "content-type": "application/json", "x-hookpoint": "1" }, body: JSON.stringify({ do: what, args, expect }) });
    if (!response.ok) throw new Error(await response.text());
    const answer = await response.json();
    tell(answer.status, `${what}: ${answer.text}`);
  } catch (error) {
    tell("error", `${what}: ${error.message}`);
  }
  loadRun();
}

function tell(status, words) {
  $("answer").className = status;
  $("answer").textContent = words;
}

$("actions").addEventListener("click", (event) => {
  const what = event.target.dataset.do;
  if (what && (what !== "stop" || confirm("Stop this run?"))) command(what, {});
});
$("knobs").addEventListener("submit", (event) => event.preventDefault());
$("knobs").addEventListener("change", (event) => {
  const input = event.target, value = typed(input), name = input.dataset.knob, was = JSON.parse(input.dataset.was);
  input.blur();
  if (Number.isNaN(value)) { tell("error", `${name}: expected a number`); return; }
  command("set", { values: { [name]: value } }, { [name]: was });
});

// Messages

function listen() {
  state.source?.close();
  state.source = null;
  if (document.hidden) return; // a browser has six connections for all pages
  const source = (state.source = new EventSource(`/api/stream?runs=${[...new Set([...state.shown.keys(), state.focus].filter(Boolean))].join(",")}`));
  source.addEventListener("open", () => { $("connection").textContent = ""; });
  source.addEventListener("error", () => { $("connection").textContent = "not connected"; });
  source.addEventListener("state", (message) => {
    const { table, curves } = JSON.parse(message.data);
    if (table !== state.table) load();
    for (const [run, version] of Object.entries(curves)) {
      const known = state.answers.get(run);
      if (state.shown.has(run) && version !== null && known?.version !== version) loadCurves(run);
    }
  });
  source.addEventListener("runs", (message) => {
    const { rows: changed, gone } = JSON.parse(message.data);
    for (const row of changed) {
      if (row.key === state.focus) {
        drawState(row);
        if (row.status !== state.runs.get(row.key)?.status || row.control !== state.runs.get(row.key)?.control) refreshRun();
      }
      state.runs.set(row.key, row);
    }
    for (const key of gone) { state.runs.delete(key); state.shown.delete(key); state.answers.delete(key); }
    drawRuns();
    if (gone.length) drawCharts();
  });
  source.addEventListener("curves", (message) => { const { run, version } = JSON.parse(message.data); if (state.shown.has(run) && state.answers.get(run)?.version !== version) loadCurves(run); });
  source.addEventListener("event", (message) => {
    const event = JSON.parse(message.data);
    if (event.run !== state.focus) return;
    $("events").prepend(eventLine(event));
    while ($("events").children.length > MAX_EVENTS) $("events").lastChild.remove();
    refreshRun();
  });
  source.addEventListener("answer", (message) => { if (JSON.parse(message.data).run === state.focus) refreshRun(); });
}

document.addEventListener("visibilitychange", () => { listen(); });
for (const id of ["log-scale", "x-axis", "find-metric"]) $(id).addEventListener("input", drawCharts);
$("find-run").addEventListener("input", () => drawRuns());

async function begin() {
  const answer = await get("/api/runs");
  state.table = answer.version;
  state.runs = new Map(answer.runs.map((run) => [run.key, run]));
  if (!state.shown.size) for (const run of answer.runs.slice(0, FIRST_RUNS)) show(run.key);
  state.focus ??= answer.runs[0]?.key ?? null;
  const curves = [...state.shown.keys()].map(loadCurves);
  drawRuns(FIRST_ROWS);
  loadRun();
  await Promise.all(curves);
  drawRuns();
}

async function load() {
  try {
    await begin();
  } catch (error) {
    $("connection").textContent = error.message;
  }
}

await load();
listen();
document.body.dataset.ready = "1";
