// What an application writes with OpenAI's library for Node to state SLOs: `node openai_node.mjs URL FOLDER`, where FOLDER
// has node_modules/openai. Prints the same object as clients.py.
import { createRequire } from "node:module";
import path from "node:path";

const [url, folder] = process.argv.slice(2);
const OpenAI = createRequire(path.resolve(folder, "package.json"))("openai");

const model = "builtin:tiny";
const messages = [{ role: "user", content: "Hello" }];
const headers = { "x-slo-class": "interactive", "x-slo-ttft-ms": "500", "x-slo-tpot-ms": "50", "x-slo-report": "1" };
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: "k", maxRetries: 0 });

const { data, response } = await client.chat.completions
  .create({ model, messages, max_tokens: 8 }, { headers })
  .withResponse();
const slo = { class: "batch", e2e_ms: 30000, report: true, updates: true };
let stream = "";
let last;
for await (const chunk of await client.chat.completions.create({ model, messages, max_tokens: 8, stream: true, slo })) {
  stream += chunk.choices[0]?.delta?.content ?? "";
  last = chunk;
}
let refused = "";
try {
  await client.chat.completions.create({ model, messages, slo: { ttft_ms: -5 } });
} catch (error) {
  if (!(error instanceof OpenAI.BadRequestError)) throw error;
  refused = error.message;
}
const found = {
  client: "openai-node",
  reply: data.choices[0].message.content,
  report: data.slo ?? null,
  headers: [...response.headers.keys()].filter((name) => name.startsWith("x-slo-")).sort(),
  stream,
  stream_report: last?.slo ?? null,
  refused,
};
console.log(JSON.stringify(found));
