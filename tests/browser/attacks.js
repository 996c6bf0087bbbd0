// A page on another port tries to read the board, and to stop a run. PORT and KEY are those of the board and the run.
const board = "http://127.0.0.1:PORT", control = `${board}/api/run/KEY/control`, body = '{"do": "stop", "args": {}}';
const done = {};
const attempt = async (name, action) => { try { done[name] = String(await action()); } catch (error) { done[name] = `failed`; } };
const json = { "content-type": "application/json", "x-hookpoint": "1" };
await attempt("fetch", async () => (await fetch(`${board}/api/runs`, { credentials: "include" })).text());
await attempt("opaque", async () => (await fetch(`${board}/api/runs`, { credentials: "include", mode: "no-cors" })).text());
await attempt("simple", async () => (await fetch(control, { method: "POST", body, credentials: "include", mode: "no-cors" })).text());
await attempt("text", async () => (await fetch(control, { method: "POST", body, headers: { "content-type": "text/plain" }, credentials: "include", mode: "no-cors" })).text());
await attempt("preflight", async () => (await fetch(control, { method: "POST", body, headers: json, credentials: "include" })).text());
await attempt("beacon", async () => navigator.sendBeacon(control, new Blob([body], { type: "application/json" })) && "sent");
await attempt("script", () => new Promise((resolve) => { const one = document.createElement("script"); one.src = `${board}/api/runs`; one.onload = () => resolve("loaded"); one.onerror = () => resolve("failed"); document.body.append(one); }));
await attempt("page script", () => new Promise((resolve) => { const one = document.createElement("script"); one.src = `${board}/board.js`; one.type = "module"; one.onload = () => resolve("loaded"); one.onerror = () => resolve("failed"); document.body.append(one); }));
await attempt("image", () => new Promise((resolve) => { const one = new Image(); one.src = `${board}/favicon.svg`; one.onload = () => resolve("loaded"); one.onerror = () => resolve("failed"); }));
await attempt("websocket", () => new Promise((resolve) => { const one = new WebSocket(`ws://127.0.0.1:PORT/api/stream`); one.onopen = () => resolve("open"); one.onerror = () => resolve("failed"); }));
await attempt("events", () => new Promise((resolve) => { const one = new EventSource(`${board}/api/stream`, { withCredentials: true }); one.onopen = () => resolve("open"); one.onerror = () => { one.close(); resolve("failed"); }; }));
await attempt("frame", () => new Promise((resolve) => { const one = document.createElement("iframe"); one.src = `${board}/`; one.onload = () => { try { resolve(one.contentDocument ? "readable" : "failed"); } catch { resolve("failed"); } }; document.body.append(one); }));
await attempt("form", () => new Promise((resolve) => {
  const frame = document.createElement("iframe"), form = document.createElement("form"), field = document.createElement("input");
  frame.name = "target"; form.target = "target"; form.method = "POST"; form.action = control; form.enctype = "text/plain";
  field.name = '{"do": "stop", "args": {}, "x": "'; field.value = '"}';
  form.append(field); document.body.append(frame, form);
  frame.onload = () => resolve("failed");
  form.submit();
}));
document.body.dataset.done = JSON.stringify(done);
