// The Messages API through @anthropic-ai/sdk: messages, streaming, tools, stop sequences, counting.
import assert from "node:assert/strict";
import { test } from "node:test";
import { anthropic, collect, model, user, weather } from "./lib.mjs";

const base = { model, max_tokens: 200, temperature: 0, thinking: { type: "disabled" } };
const ask = (content, more = {}) =>
    anthropic.messages.create({ ...base, messages: [user(content)], ...more });
const OSLO = "The capital of Norway is Oslo.";
const LISBON = "What is the weather in Lisbon in celsius?";
const tool = {
    name: "get_weather",
    description: weather.function.description,
    input_schema: weather.function.parameters,
};

test("a message", async () => {
    const m = await ask("What is the capital of Norway?");
    assert.match(m.id, /^msg_/);
    assert.equal(m.type, "message");
    assert.equal(m.role, "assistant");
    assert.equal(m.model, model);
    assert.deepEqual(m.content.map((b) => [b.type, b.text]), [["text", OSLO]]);
    assert.equal(m.stop_reason, "end_turn");
    assert.equal(m.stop_sequence, null);
    assert.equal(m.usage.output_tokens, 11);
    assert.ok(m.usage.input_tokens + (m.usage.cache_read_input_tokens ?? 0) >= 20);
});

test("system text and content blocks", async () => {
    const m = await ask([{ type: "text", text: "What is the capital of Norway?" }], {
        system: [{ type: "text", text: "You are a helpful assistant." }],
    });
    assert.equal(m.content[0].text, OSLO);
});

test("raw events", async () => {
    const events = await collect(await ask("What is the capital of Norway?", { stream: true }));
    const types = events.map((e) => e.type).filter((t) => t !== "ping");
    assert.equal(types[0], "message_start");
    assert.equal(types[1], "content_block_start");
    assert.deepEqual(types.slice(-3), ["content_block_stop", "message_delta", "message_stop"]);
    const text = events
        .filter((e) => e.type === "content_block_delta")
        .map((e) => e.delta.text)
        .join("");
    assert.equal(text, OSLO);
    const delta = events.find((e) => e.type === "message_delta");
    assert.equal(delta.delta.stop_reason, "end_turn");
    assert.equal(delta.usage.output_tokens, 11);
});

test("the stream helper of the client", async () => {
    const stream = anthropic.messages.stream({
        ...base,
        messages: [user("What is the capital of Norway?")],
    });
    let text = "";
    stream.on("text", (piece) => (text += piece));
    const final = await stream.finalMessage();
    assert.equal(text, OSLO);
    assert.equal(final.content[0].text, OSLO);
});

test("tools: call, result, answer", async () => {
    const first = await ask(LISBON, { tools: [tool] });
    assert.equal(first.stop_reason, "tool_use");
    const call = first.content.find((b) => b.type === "tool_use");
    assert.equal(call.name, "get_weather");
    assert.deepEqual(call.input, { city: "Lisbon", unit: "celsius" });
    assert.match(call.id, /^toolu_/);
    const second = await anthropic.messages.create({
        ...base,
        tools: [tool],
        messages: [
            user(LISBON),
            { role: "assistant", content: first.content },
            user([
                {
                    type: "tool_result",
                    tool_use_id: call.id,
                    content: '{"temperature": 21, "condition": "sunny"}',
                },
            ]),
        ],
    });
    assert.equal(second.stop_reason, "end_turn");
    assert.equal(second.content[0].text, "It is 21 degrees celsius and sunny in Lisbon.");
});

test("a streamed tool call", async () => {
    const stream = anthropic.messages.stream({ ...base, tools: [tool], messages: [user(LISBON)] });
    let json = "";
    stream.on("inputJson", (piece) => (json += piece));
    const final = await stream.finalMessage();
    const call = final.content.find((b) => b.type === "tool_use");
    assert.deepEqual(call.input, { city: "Lisbon", unit: "celsius" });
    assert.deepEqual(JSON.parse(json), call.input);
    assert.equal(final.stop_reason, "tool_use");
});

test("tool_choice any, tool and none", async () => {
    const any = await ask("What is the capital of Norway?", {
        tools: [tool],
        tool_choice: { type: "any" },
    });
    assert.equal(any.stop_reason, "tool_use");
    const one = await ask("Write a haiku", {
        tools: [tool],
        tool_choice: { type: "tool", name: "get_weather" },
    });
    assert.equal(one.content.find((b) => b.type === "tool_use").name, "get_weather");
    const none = await ask(LISBON, { tools: [tool], tool_choice: { type: "none" } });
    assert.ok(none.content.every((b) => b.type !== "tool_use"));
});

test("stop_sequences", async () => {
    const m = await ask("Count from 1 to 30.", { stop_sequences: ["nope", " 20,"] });
    assert.equal(m.stop_reason, "stop_sequence");
    assert.equal(m.stop_sequence, " 20,");
    assert.ok(m.content[0].text.endsWith("18, 19,"));
    const events = await collect(
        await ask("Count from 1 to 30.", { stop_sequences: [" 20,"], stream: true }),
    );
    const delta = events.find((e) => e.type === "message_delta");
    assert.equal(delta.delta.stop_reason, "stop_sequence");
    assert.equal(delta.delta.stop_sequence, " 20,");
});

test("max_tokens", async () => {
    const m = await ask("Count from 1 to 30.", { max_tokens: 6 });
    assert.equal(m.stop_reason, "max_tokens");
    assert.equal(m.usage.output_tokens, 6);
});

test("thinking comes as its own block", async () => {
    const m = await ask("What is 23 + 58?", {
        thinking: { type: "enabled", budget_tokens: 1024 },
        max_tokens: 2048,
    });
    assert.equal(m.content[0].type, "thinking");
    assert.match(m.content[0].thinking, /digit/);
    assert.match(m.content.find((b) => b.type === "text").text, /81/);
});

test("count_tokens is what a message is charged", async () => {
    const body = { model, messages: [user(LISBON)], tools: [tool] };
    const { input_tokens } = await anthropic.messages.countTokens({
        ...body,
        thinking: { type: "disabled" },
    });
    const m = await anthropic.messages.create({ ...base, ...body, max_tokens: 1 });
    const u = m.usage;
    assert.equal(
        input_tokens,
        u.input_tokens + (u.cache_read_input_tokens ?? 0) + (u.cache_creation_input_tokens ?? 0),
    );
    assert.equal(input_tokens, 145);
});

test("errors", async () => {
    const cases = [
        { max_tokens: "x" },
        { max_tokens: 0 },
        { temperature: "hot" },
        { stop_sequences: "x" },
        { messages: [] },
        { messages: [{ role: "wizard", content: "x" }] },
        { messages: [user([{ type: "image", source: { type: "url", url: "x" } }])] },
        { tools: [{ name: 5 }] },
        { tool_choice: { type: "any" } },
    ];
    for (const more of cases) {
        await assert.rejects(ask("x", more), (e) => {
            assert.equal(e.status, 400, JSON.stringify(more));
            assert.equal(e.error.type, "error");
            assert.equal(e.error.error.type, "invalid_request_error");
            return true;
        });
    }
});
