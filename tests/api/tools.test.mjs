// Tools: calls in the model's own syntax become the API's, whole and streamed; tool_choice.
import assert from "node:assert/strict";
import { test } from "node:test";
import { assemble, base, chat, clock, collect, openai, user, validate, weather } from "./lib.mjs";

const LISBON = "What is the weather in Lisbon in celsius?";
// Makes the model go on after a call, so that it calls again.
const NO_END = { 8180: -100, 8182: -100 };

const callsOf = (r) => r.choices[0].message.tool_calls ?? [];

test("a call, its result and the answer", async () => {
    const messages = [user(LISBON)];
    const ask = () => openai.chat.completions.create({ ...base, messages, tools: [weather] });
    const first = await ask();
    assert.equal(first.choices[0].finish_reason, "tool_calls");
    const [call] = callsOf(first);
    assert.equal(callsOf(first).length, 1);
    assert.match(call.id, /^call_/);
    assert.equal(call.type, "function");
    assert.equal(call.function.name, "get_weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Lisbon", unit: "celsius" });
    assert.ok(!first.choices[0].message.content, "no markup in the visible text");

    const result = '{"temperature": 21, "condition": "sunny"}';
    messages.push(first.choices[0].message);
    messages.push({ role: "tool", tool_call_id: call.id, content: result });
    const second = await ask();
    assert.equal(second.choices[0].finish_reason, "stop");
    assert.equal(
        second.choices[0].message.content,
        "It is 21 degrees celsius and sunny in Lisbon.",
    );
});

test("a streamed call", async () => {
    const chunks = await collect(await chat(LISBON, { tools: [weather], stream: true }));
    const [choice] = assemble(chunks);
    assert.equal(choice.finish, "tool_calls");
    assert.equal(choice.content, "");
    assert.equal(choice.calls.length, 1);
    assert.equal(choice.calls[0].name, "get_weather");
    assert.deepEqual(JSON.parse(choice.calls[0].arguments), { city: "Lisbon", unit: "celsius" });
    const named = chunks.flatMap((c) => c.choices.flatMap((x) => x.delta.tool_calls ?? []));
    assert.ok(named[0].id && named[0].function.name, "the first piece has id and name");
    assert.ok(named.slice(1).every((c) => !c.function?.name), "the others have not");
});

test("runTools of the client: the whole loop", async () => {
    const asked = [];
    const runner = openai.chat.completions.runTools({
        ...base,
        messages: [user(LISBON)],
        tools: [
            {
                type: "function",
                function: {
                    ...weather.function,
                    parse: JSON.parse,
                    function: (args) => {
                        asked.push(args);
                        return '{"temperature": 21, "condition": "sunny"}';
                    },
                },
            },
        ],
    });
    assert.match(await runner.finalContent(), /21/);
    assert.deepEqual(asked, [{ city: "Lisbon", unit: "celsius" }]);
});

test("no call where none is wanted", async () => {
    const r = await chat("What is the capital of Norway?", { tools: [weather] });
    assert.equal(r.choices[0].message.content, "The capital of Norway is Oslo.");
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.equal(callsOf(r).length, 0);
});

test("tool_choice none", async () => {
    const r = await chat(LISBON, { tools: [weather], tool_choice: "none" });
    assert.equal(callsOf(r).length, 0);
    assert.notEqual(r.choices[0].finish_reason, "tool_calls");
    assert.doesNotMatch(r.choices[0].message.content ?? "", /tool_call|function=/);
});

test("tool_choice required forces a call", async () => {
    const more = { tools: [weather, clock], tool_choice: "required" };
    const r = await chat("What is the capital of Norway?", more);
    assert.equal(r.choices[0].finish_reason, "tool_calls");
    assert.ok(callsOf(r).length >= 1);
    for (const { function: f } of callsOf(r)) {
        const tool = [weather, clock].find((t) => t.function.name === f.name);
        assert.ok(tool, f.name);
        validate(tool.function.parameters, f.arguments);
    }
});

test("tool_choice of one function", async () => {
    for (const tool of [weather, clock]) {
        const r = await chat(LISBON, {
            tools: [weather, clock],
            tool_choice: { type: "function", function: { name: tool.function.name } },
        });
        const [call] = callsOf(r);
        assert.equal(call.function.name, tool.function.name);
        validate(tool.function.parameters, call.function.arguments);
    }
});

test("parallel calls, whole and streamed", async () => {
    const more = {
        tools: [weather, clock],
        tool_choice: "required",
        logit_bias: NO_END,
        max_tokens: 90,
    };
    const question = "What is the weather in Lisbon and in Oslo?";
    const r = await chat(question, more);
    const calls = callsOf(r);
    assert.ok(calls.length >= 2, `${calls.length} calls`);
    assert.equal(new Set(calls.map((c) => c.id)).size, calls.length);
    assert.equal(JSON.parse(calls[0].function.arguments).city, "Lisbon");
    for (const { function: f } of calls) JSON.parse(f.arguments);
    const [choice] = assemble(await collect(await chat(question, { ...more, stream: true })));
    const pairs = (list) => list.slice(0, 2).map((c) => [c.name, c.arguments]);
    assert.deepEqual(pairs(choice.calls), pairs(calls.map((c) => c.function)));
});

test("parallel_tool_calls false", async () => {
    const r = await chat("What is the weather in Lisbon and in Oslo?", {
        tools: [weather],
        tool_choice: "required",
        parallel_tool_calls: false,
    });
    assert.equal(callsOf(r).length, 1);
    assert.equal(r.choices[0].finish_reason, "tool_calls");
});

test("two results of parallel calls", async () => {
    const call = (id, city) => ({
        id,
        type: "function",
        function: { name: "get_weather", arguments: JSON.stringify({ city }) },
    });
    const r = await openai.chat.completions.create({
        ...base,
        tools: [weather],
        messages: [
            user("What is the weather in Lisbon and in Oslo?"),
            {
                role: "assistant",
                content: null,
                tool_calls: [call("call_a", "Lisbon"), call("call_b", "Oslo")],
            },
            { role: "tool", tool_call_id: "call_a", content: '{"temperature": 21}' },
            { role: "tool", tool_call_id: "call_b", content: '{"temperature": 3}' },
        ],
    });
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.ok(r.choices[0].message.content.length > 3);
});

test("a strict tool is held to its schema at any temperature", async () => {
    const parameters = {
        type: "object",
        properties: {
            city: { type: "string", enum: ["Lisbon", "Oslo", "Cairo"] },
            days: { type: "integer", minimum: 1, maximum: 9 },
            hourly: { type: "boolean" },
        },
        required: ["city", "days", "hourly"],
        additionalProperties: false,
    };
    const tool = {
        type: "function",
        function: { name: "forecast", description: "Forecast", strict: true, parameters },
    };
    for (let seed = 1; seed <= 5; seed++) {
        const r = await chat("What is the weather in Oslo?", {
            tools: [tool],
            tool_choice: "required",
            parallel_tool_calls: false,
            temperature: 1.5,
            seed,
        });
        assert.equal(callsOf(r).length, 1);
        validate(parameters, callsOf(r)[0].function.arguments);
    }
});
