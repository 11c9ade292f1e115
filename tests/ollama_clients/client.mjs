// Uses every call of the JavaScript client that generates, and prints what came back as JSON.
// usage: node client.mjs MODULES URL MODEL
import { createRequire } from "node:module";

import { collect, fail } from "./results.mjs";

const [modules, host, model] = process.argv.slice(2);
const { Ollama } = createRequire(`${modules}/`)("ollama");
const client = new Ollama({ host });
const messages = [{ role: "user", content: "Tell me about the sea." }];
const options = { temperature: 0, num_predict: 12, seed: 1 };
const schema = {
  type: "object",
  properties: { name: { enum: ["Rex", "Tom"] } },
  required: ["name"],
  additionalProperties: false,
};
const weather = { type: "function", function: { name: "weather", description: "Get the weather." } };

const results = {
  version: await client.version(),
  chat: await client.chat({ model, messages, options }),
  chatLines: await collect(client.chat({ model, messages, options, stream: true })),
  generate: await client.generate({ model, prompt: "The sea is", options }),
  generateLines: await collect(client.generate({ model, prompt: "The sea is", options, stream: true })),
  raw: await client.generate({ model, prompt: "One, two, three,", raw: true, options }),
  formatted: await client.chat({ model, messages, format: schema, options: { num_predict: 40 } }),
  tools: await client.chat({ model, messages, tools: [weather], options }),
  embed: await client.embed({ model, input: ["the sea", "a tax form"] }),
  embeddings: await client.embeddings({ model, prompt: "the sea" }),
  unknownModel: await fail(client.chat({ model: "nobody", messages })),
  unknownModelStreamed: await fail(client.chat({ model: "nobody", messages, stream: true })),
  noThinking: await fail(client.chat({ model, messages, think: true })),
  unloaded: await client.generate({ model, prompt: "", keep_alive: 0 }),
  loaded: await client.generate({ model, prompt: "", keep_alive: "5m" }),
};

const aborted = client.chat({ model, messages, stream: true, options: { num_predict: 400 } });
results.aborted = await fail(
  (async () => {
    for await (const line of await aborted) if (line) client.abort();
  })(),
);
console.log(JSON.stringify(results));
