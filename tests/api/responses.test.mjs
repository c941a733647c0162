// The Responses API: create, streaming events, function tools, previous_response_id, stored items.
import assert from "node:assert/strict";
import { test } from "node:test";
import { OMAR, collect, model, openai, validate, weather } from "./lib.mjs";

const base = { model, temperature: 0, max_output_tokens: 200, reasoning: { effort: "none" } };
const ask = (input, more = {}) => openai.responses.create({ ...base, input, ...more });
const OSLO = "The capital of Norway is Oslo.";
const tool = { type: "function", strict: false, ...weather.function };

test("a response", async () => {
    const r = await ask("What is the capital of Norway?");
    assert.match(r.id, /^resp_/);
    assert.equal(r.object, "response");
    assert.equal(r.status, "completed");
    assert.equal(r.output_text, OSLO);
    const message = r.output.find((o) => o.type === "message");
    assert.equal(message.role, "assistant");
    assert.equal(message.status, "completed");
    assert.equal(message.content[0].type, "output_text");
    assert.equal(r.usage.total_tokens, r.usage.input_tokens + r.usage.output_tokens);
    assert.equal(r.usage.output_tokens, 11);
});

test("input items and instructions", async () => {
    const r = await ask(
        [
            {
                type: "message",
                role: "user",
                content: [{ type: "input_text", text: "What is the capital of Norway?" }],
            },
        ],
        { instructions: "You are a helpful assistant." },
    );
    assert.equal(r.output_text, OSLO);
});

test("streaming events", async () => {
    const events = await collect(await ask("What is the capital of Norway?", { stream: true }));
    const types = events.map((e) => e.type);
    assert.equal(types[0], "response.created");
    assert.equal(types.at(-1), "response.completed");
    for (const type of [
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
    ]) {
        assert.ok(types.includes(type), type);
    }
    events.forEach((e, i) => assert.equal(e.sequence_number, i));
    const deltas = events.filter((e) => e.type === "response.output_text.delta");
    assert.equal(deltas.map((e) => e.delta).join(""), OSLO);
    assert.equal(events.find((e) => e.type === "response.output_text.done").text, OSLO);
    assert.equal(events.at(-1).response.output[0].content[0].text, OSLO);
    assert.equal(events.at(-1).response.usage.output_tokens, 11);
});

test("the stream helper of the client", async () => {
    const stream = openai.responses.stream({ ...base, input: "What is the capital of Norway?" });
    const [message] = (await stream.finalResponse()).output;
    assert.equal(message.content[0].text, OSLO);
});

test("function tools: call, result, answer", async () => {
    const question = "What is the weather in Lisbon in celsius?";
    const first = await ask(question, { tools: [tool] });
    const call = first.output.find((o) => o.type === "function_call");
    assert.equal(call.name, "get_weather");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Lisbon", unit: "celsius" });
    assert.ok(call.call_id);
    const second = await ask(
        [
            {
                type: "function_call_output",
                call_id: call.call_id,
                output: '{"temperature": 21, "condition": "sunny"}',
            },
        ],
        { tools: [tool], previous_response_id: first.id },
    );
    assert.equal(second.previous_response_id, first.id);
    assert.equal(second.output_text, "It is 21 degrees celsius and sunny in Lisbon.");
});

test("a streamed function call", async () => {
    const events = await collect(
        await ask("What is the weather in Lisbon in celsius?", { tools: [tool], stream: true }),
    );
    const deltas = events.filter((e) => e.type === "response.function_call_arguments.delta");
    const done = events.find((e) => e.type === "response.function_call_arguments.done");
    assert.equal(deltas.map((e) => e.delta).join(""), done.arguments);
    assert.deepEqual(JSON.parse(done.arguments), { city: "Lisbon", unit: "celsius" });
    assert.equal(events.at(-1).response.output.at(-1).type, "function_call");
});

test("previous_response_id carries the conversation", async () => {
    const first = await ask("What is the capital of Norway?");
    const second = await ask("What is the capital of France?", { previous_response_id: first.id });
    assert.ok(second.usage.input_tokens > first.usage.input_tokens + first.usage.output_tokens - 2);
    await assert.rejects(ask("x", { previous_response_id: "resp_none" }), (e) => {
        assert.equal(e.param, "previous_response_id");
        return e.status === 404 || e.status === 400;
    });
});

test("stored responses are retrieved, listed and deleted", async () => {
    const r = await ask("What is the capital of Norway?");
    assert.equal((await openai.responses.retrieve(r.id)).output_text ?? OSLO, OSLO);
    const items = await collect(openai.responses.inputItems.list(r.id));
    assert.equal(items.length, 1);
    assert.equal(items[0].role, "user");
    await openai.responses.delete(r.id);
    await assert.rejects(openai.responses.retrieve(r.id), { status: 404 });
    const kept = await ask("What is the capital of Norway?", { store: false });
    await assert.rejects(openai.responses.retrieve(kept.id), { status: 404 });
});

test("a text format with a schema", async () => {
    const schema = {
        type: "object",
        properties: {
            name: { type: "string" },
            age: { type: "integer" },
            city: { type: "string" },
        },
        required: ["name", "age", "city"],
        additionalProperties: false,
    };
    const r = await ask(OMAR, {
        text: { format: { type: "json_schema", name: "person", strict: true, schema } },
    });
    assert.deepEqual(validate(schema, r.output_text), { name: "Omar", age: 41, city: "Vienna" });
});

test("max_output_tokens leaves the response incomplete", async () => {
    const r = await ask("Count from 1 to 30.", { max_output_tokens: 6 });
    assert.equal(r.status, "incomplete");
    assert.equal(r.incomplete_details.reason, "max_output_tokens");
    assert.equal(r.usage.output_tokens, 6);
});

test("errors name the field", async () => {
    await assert.rejects(ask(5), (e) => e.status === 400 && e.param === "input");
    await assert.rejects(ask("x", { temperature: "hot" }), (e) => e.param === "temperature");
    await assert.rejects(ask("x", { tools: [{ type: "web_search_preview" }] }), (e) => {
        assert.match(e.param, /^tools\[0\]/);
        return e.status === 400;
    });
});
