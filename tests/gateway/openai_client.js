// Calls a gateway with the openai package and prints what it got as JSON. Usage: node openai_client.js URL
const OpenAI = require("openai");

async function main() {
  const client = new OpenAI({ baseURL: process.argv[2] + "/v1", apiKey: "sk-any", maxRetries: 0 });
  const asked = { model: "gpt-4o", messages: [{ role: "user", content: "hello" }], max_tokens: 3 };
  const found = {};
  found.chat = (await client.chat.completions.create(asked)).choices[0].message.content;
  found.streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...asked, stream: true })) {
    found.streamed += chunk.choices[0].delta.content;
  }
  found.completion = (await client.completions.create({ model: "gpt-4o", prompt: "hello", max_tokens: 2 })).choices[0].text;
  const response = { model: "gpt-4o", input: "hello", max_output_tokens: 3 };
  found.response = (await client.responses.create(response)).output_text;
  found.events = "";
  for await (const event of await client.responses.create({ ...response, stream: true })) {
    if (event.type === "response.output_text.delta") found.events += event.delta;
  }
  const embedded = await client.embeddings.create({ model: "gpt-4o", input: "hello", encoding_format: "float" });
  found.embedding = embedded.data[0].embedding;
  found.models = [];
  for await (const model of client.models.list()) found.models.push(model.id);
  try {
    await client.chat.completions.create({ ...asked, model: "other" });
  } catch (error) {
    found.unknown = [error.status, error.code];
  }
  console.log(JSON.stringify(found));
}

main();
