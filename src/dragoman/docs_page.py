"""The page at /docs: reads the OpenAPI document and shows it. Needs nothing from elsewhere."""

from __future__ import annotations

HTML = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Dragoman</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8881; --mark: #0a7; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; } h1 small { color: gray; font-weight: normal; }
details { border: 1px solid var(--line); border-radius: 6px; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; } summary code { font-weight: 600; }
.method { display: inline-block; width: 3.5rem; color: var(--mark); font-weight: 600; }
.lock { color: gray; float: right; font-size: .85em; }
table { border-collapse: collapse; width: 100%; margin: .6rem 0; }
td { border-top: 1px solid var(--line); padding: .2rem .5rem; vertical-align: top; }
td:first-child { white-space: nowrap; } .need { color: var(--mark); }
pre { background: var(--soft); padding: .6rem; overflow: auto; border-radius: 6px; }
textarea { width: 100%; min-height: 7rem; font: 13px/1.4 monospace; box-sizing: border-box; }
button { margin: .4rem 0; }
</style>
<h1>Dragoman <small id="version"></small></h1>
<p><label>API key, if the server wants one: <input id="key" type="password"></label></p>
<main id="main">Loading the document&hellip;</main>
<script>
const main = document.getElementById("main");
const element = (tag, text, kind) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
};
const base = location.pathname.replace(/\\/docs$/, "");
const authorized = () => {
  const key = document.getElementById("key").value;
  return key ? { authorization: "Bearer " + key } : {};
};
let schemas = {};
const resolve = (schema) => {
  let seen = schema || {};
  while (seen.$ref) seen = schemas[seen.$ref.split("/").pop()];
  return seen;
};
const kind = (schema) => {
  if (!schema) return "any";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if (schema.anyOf) return schema.anyOf.map(kind).join(" | ");
  if (schema.enum) return schema.enum.map((v) => JSON.stringify(v)).join(" | ");
  if (schema.type === "array") return kind(schema.items) + "[]";
  const low = schema.minimum ?? schema.exclusiveMinimum, high = schema.maximum;
  const range = low !== undefined || high !== undefined ? ` (${low ?? ""} to ${high ?? ""})` : "";
  return (schema.type || "any") + range;
};
const table = (schema) => {
  const made = element("table");
  for (const [name, field] of Object.entries(schema.properties || {})) {
    const row = made.insertRow();
    const needed = (schema.required || []).includes(name);
    row.append(element("td", name, needed ? "need" : ""), element("td", kind(field)));
  }
  return made;
};
const tryIt = (path, method, body) => {
  const box = element("div"), text = element("textarea"), go = element("button", "Send");
  const out = element("pre");
  if (body) { text.value = example(path); box.append(text); }
  go.onclick = async () => {
    out.textContent = "";
    const options = { method: method.toUpperCase(), headers: authorized() };
    if (body) {
      options.headers["content-type"] = "application/json";
      options.body = text.value;
    }
    try {
      const answer = await fetch(base + path, options);
      const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
      for (let part; !(part = await reader.read()).done; ) out.textContent += part.value;
    } catch (failure) { out.textContent = String(failure); }
  };
  box.append(go, out);
  return box;
};
const example = (path) => {
  if (path.endsWith("/chat/completions"))
    return '{"model": "smollm2-135m", "messages": [{"role": "user", "content": "Hello!"}],'
      + ' "max_tokens": 50, "stream": true}';
  if (path.endsWith("/embeddings")) return '{"model": "smollm2-135m", "input": "Hello!"}';
  if (path.endsWith("/detokenize")) return '{"tokens": [1]}';
  return '{"model": "smollm2-135m", "prompt": "Hello"}';
};
const show = (api) => {
  schemas = api.components.schemas;
  document.getElementById("version").textContent = api.info.version;
  main.textContent = "";
  for (const [path, methods] of Object.entries(api.paths))
    for (const [method, operation] of Object.entries(methods)) {
      const box = element("details"), head = element("summary");
      head.append(element("span", method.toUpperCase(), "method"), element("code", path),
        " " + operation.summary);
      if (operation.security) head.append(element("span", "key", "lock"));
      box.append(head);
      const body = operation.requestBody?.content["application/json"].schema;
      if (body) box.append(element("strong", "Body"), table(resolve(body)));
      const answer = operation.responses["200"].content["application/json"]?.schema;
      if (answer) box.append(element("strong", "Answer"), table(resolve(answer)));
      if (!path.includes("{")) box.append(tryIt(path, method, Boolean(body)));
      main.append(box);
    }
};
const load = () => fetch(base + "/openapi.json", { headers: authorized() })
  .then((answer) => answer.ok ? answer.json().then(show) : answer.text().then((text) => {
    main.textContent = "The document needs an API key: enter it above."; }));
document.getElementById("key").onchange = load;
load();
</script>
"""
