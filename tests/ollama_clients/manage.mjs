// Uses every call of the JavaScript client that manages models, and prints what came back as JSON.
// usage: node manage.mjs MODULES URL MODEL
import { createRequire } from "node:module";

import { collect, fail } from "./results.mjs";

const [modules, host, model] = process.argv.slice(2);
const { Ollama } = createRequire(`${modules}/`)("ollama");
const client = new Ollama({ host });

const system = "You are a poet.";
const names = async () => (await client.list()).models.map((item) => item.name);
const results = {
  list: await client.list(),
  show: await client.show({ model }),
  ps: await client.ps(),
  pull: await client.pull({ model }),
  pullLines: await collect(client.pull({ model, stream: true })),
  copy: await client.copy({ source: model, destination: "copy" }),
  create: await client.create({ model: "poet", from: model, system, parameters: { num_predict: 2 } }),
  createLines: await collect(client.create({ model: "poet:two", from: "poet", stream: true })),
  created: await client.show({ model: "poet:two" }),
  chat: await client.chat({ model: "poet", messages: [{ role: "user", content: "Hi" }] }),
  names: await names(),
  deleted: [
    await client.delete({ model: "copy" }),
    await client.delete({ model: "poet" }),
    await client.delete({ model: "poet:two" }),
  ],
  left: await names(),
  unknown: await fail(client.show({ model: "nobody" })),
  unknownPull: await fail(collect(client.pull({ model: "nobody", stream: true }))),
  push: await fail(client.push({ model })),
  badName: await fail(client.create({ model: "../x", from: model })),
};
console.log(JSON.stringify(results));
