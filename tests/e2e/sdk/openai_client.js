// The official OpenAI client for JavaScript against a gateway: `node openai_client.js http://HOST:PORT ENGINE`, with the client in NODE_PATH.
"use strict";

const assert = require("node:assert/strict");
const { OpenAI, NotFoundError, BadRequestError } = require("openai");

const model = "tiny-chat";
const messages = [
  { role: "system", content: "Be brief." },
  { role: "user", content: "Hello!" },
];
const tool = {
  name: "get_weather",
  description: "Weather in a city",
  parameters: {
    type: "object",
    properties: { city: { type: "string", enum: ["Rome", "Oslo"] } },
    required: ["city"],
    additionalProperties: false,
  },
};

const said = (message) => (message.reasoning_content ?? "") + (message.content ?? "");
const city = (text) => assert.ok(["Rome", "Oslo"].includes(JSON.parse(text).city), text);

async function chat(client) {
  const asked = { model, messages, max_tokens: 8, temperature: 0 };
  const whole = await client.chat.completions.create(asked);
  const [choice] = whole.choices;
  assert.equal(choice.message.role, "assistant");
  assert.ok(said(choice.message), JSON.stringify(whole));
  assert.ok(["stop", "length"].includes(choice.finish_reason), choice.finish_reason);
  assert.ok(whole.usage.completion_tokens >= 1 && whole.usage.completion_tokens <= 8);

  let text = "";
  let finish = null;
  let usage = null;
  const stream = await client.chat.completions.create({ ...asked, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    for (const { delta, finish_reason } of chunk.choices) {
      text += said(delta);
      finish = finish_reason ?? finish;
    }
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, said(choice.message));
  assert.equal(finish, choice.finish_reason);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
}

async function complete(client) {
  const asked = { model, prompt: "Once upon a time", max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(asked);
  assert.ok(whole.choices[0].text);
  let text = "";
  for await (const piece of await client.completions.create({ ...asked, stream: true })) {
    text += piece.choices[0]?.text ?? "";
  }
  assert.equal(text, whole.choices[0].text);
}

async function respond(client) {
  const asked = { model, instructions: "Be brief.", input: "Hello!", max_output_tokens: 8, temperature: 0 };
  const whole = await client.responses.create(asked);
  assert.ok(["completed", "incomplete"].includes(whole.status), whole.status);
  const events = [];
  for await (const event of await client.responses.create({ ...asked, stream: true })) {
    events.push(event);
  }
  assert.deepEqual(
    events.map((event) => event.sequence_number),
    events.map((_, index) => index),
  );
  assert.equal(events[0].type, "response.created");
  assert.equal(events.at(-1).type, "response.completed");
  const deltas = events.filter((event) => event.type === "response.output_text.delta").map((event) => event.delta);
  assert.equal(deltas.join(""), whole.output_text);
}

async function refused(client) {
  await assert.rejects(client.chat.completions.create({ model: "nobody", messages }), NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: "hot" }), (error) => {
    assert.ok(error instanceof BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
}

async function callTools(client) {
  const asked = {
    model,
    messages,
    max_completion_tokens: 200,
    temperature: 0,
    tools: [{ type: "function", function: tool }],
    tool_choice: "required",
  };
  const whole = await client.chat.completions.create(asked);
  assert.equal(whole.choices[0].finish_reason, "tool_calls");
  const [call] = whole.choices[0].message.tool_calls;
  city(call.function.arguments);
  const streamed = await client.chat.completions.stream(asked).finalChatCompletion();
  const [again] = streamed.choices[0].message.tool_calls;
  assert.equal(again.function.name, call.function.name);
  assert.equal(again.function.arguments, call.function.arguments);
  const answered = [...messages, whole.choices[0].message, { role: "tool", tool_call_id: call.id, content: "sunny" }];
  const after = await client.chat.completions.create({ model, messages: answered, max_tokens: 4 });
  assert.ok(after.usage.completion_tokens >= 1);
}

async function respondWithTools(client) {
  const asked = {
    model,
    input: "Weather?",
    max_output_tokens: 200,
    temperature: 0,
    tools: [{ type: "function", strict: true, ...tool }],
    tool_choice: { type: "function", name: "get_weather" },
  };
  const whole = await client.responses.create(asked);
  const call = whole.output.find((item) => item.type === "function_call");
  city(call.arguments);
  const streamed = await client.responses.stream(asked).finalResponse();
  const again = streamed.output.find((item) => item.type === "function_call");
  assert.equal(again.arguments, call.arguments);
}

async function shape(client) {
  const shaped = await client.chat.completions.create({
    model,
    messages,
    max_tokens: 200,
    response_format: { type: "json_schema", json_schema: { name: "weather", schema: tool.parameters, strict: true } },
    enable_thinking: false,
  });
  city(shaped.choices[0].message.content);
  const several = await client.chat.completions.create({ model, messages, max_tokens: 3, n: 2, seed: 7, logprobs: true, top_logprobs: 2 });
  assert.deepEqual(
    several.choices.map((choice) => choice.index),
    [0, 1],
  );
  assert.ok(several.choices.every((choice) => choice.logprobs.content.every((entry) => entry.top_logprobs.length === 2)));
}

async function embed(client) {
  // The client asks for base64 unless told otherwise.
  const encoded = await client.embeddings.create({ model: "tiny-embed", input: ["one", "two"] });
  const plain = await client.embeddings.create({ model: "tiny-embed", input: ["one", "two"], encoding_format: "float" });
  assert.equal(encoded.data.length, 2);
  encoded.data.forEach((one, index) => {
    one.embedding.forEach((value, place) => assert.ok(Math.abs(value - plain.data[index].embedding[place]) < 1e-5));
  });
}

async function main(baseUrl, engine) {
  const client = new OpenAI({ baseURL: `${baseUrl}/v1`, apiKey: "none", maxRetries: 0, timeout: 60_000 });
  const listed = [];
  for await (const one of client.models.list()) {
    listed.push(one.id);
  }
  assert.ok(listed.includes(model));
  assert.equal((await client.models.retrieve(model)).id, model);
  const steps = [chat, complete, respond, refused];
  if (engine !== "stub") {
    steps.push(callTools, respondWithTools, shape, embed);
  }
  for (const step of steps) {
    await step(client);
  }
  console.log("ok");
}

main(...process.argv.slice(2)).catch((error) => {
  console.error(error);
  process.exit(1);
});
