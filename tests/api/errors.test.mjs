// Errors name what is wrong, in the shape that each client's error classes are made from; a client
// that leaves costs nothing.
import assert from "node:assert/strict";
import { test } from "node:test";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";
import {
    anthropic,
    base,
    chat,
    eventually,
    get,
    getJson,
    model,
    openai,
    post,
    url,
    user,
} from "./lib.mjs";

const NORWAY = "What is the capital of Norway?";
const idle = async () => (await getJson("/v1/mtplx/snapshot")).active === 0;

function bad(param, promise) {
    return assert.rejects(promise, (e) => {
        assert.ok(e instanceof OpenAI.BadRequestError || e.status === 422, `${param}: ${e}`);
        assert.equal(e.param, param);
        assert.equal(e.type, "invalid_request_error");
        assert.ok(e.message.length > 10);
        return true;
    });
}

test("wrong types and ranges name the field", async () => {
    const cases = {
        temperature: ["hot", -1, 1e9],
        top_p: [-0.5, "x", 7],
        max_tokens: ["many", -3, 1.5],
        n: [0, "two", 1000],
        stop: [{}, 5, ["a", 1]],
        stream: ["yes", 1],
        seed: ["x", 1.5],
        logprobs: ["yes"],
        top_logprobs: [-1, 99, "x"],
        logit_bias: [[], { 1: "x" }, { 999999: 1 }],
        presence_penalty: [9, "x"],
        tools: [{}, "x"],
        messages: [[], "hello", 5],
    };
    const wrong = [];
    for (const [name, values] of Object.entries(cases)) {
        for (const value of values) {
            const more = { [name]: value };
            if (name === "top_logprobs") more.logprobs = true;
            const e = await chat(NORWAY, more).then(
                () => ({ message: "was accepted" }),
                (error) => error,
            );
            const named = String(e.param).startsWith(name);
            if ((e.status !== 400 && e.status !== 422) || !named) {
                wrong.push(`${name} ${JSON.stringify(value)}: ${e.message}, param ${e.param}`);
            }
        }
    }
    assert.deepEqual(wrong, []);
});

test("places inside messages and tools", async () => {
    const send = (messages, more = {}) =>
        openai.chat.completions.create({ ...base, messages, ...more });
    await assert.rejects(send([{ role: "wizard", content: "x" }]), (e) => {
        assert.match(e.param, /^messages\[0\]/);
        return e.status === 400;
    });
    await assert.rejects(send([user("x"), user({ a: 1 })]), (e) => {
        assert.match(e.param, /^messages\[1\]/);
        return e.status === 400;
    });
    await assert.rejects(send([user("x")], { tools: [{ type: "function" }] }), (e) => {
        assert.match(e.param, /^tools\[0\]/);
        return e.status === 400;
    });
    const image = { type: "image_url", image_url: { url: "data:image/png;base64,AAAA" } };
    await assert.rejects(send([user([image])]), (e) => {
        assert.match(e.message, /image/i);
        return e.status === 400;
    });
    await bad("tool_choice", send([user("x")], { tool_choice: "required" }));
});

test("a prompt that is too long", async () => {
    await assert.rejects(chat("word ".repeat(9000)), (e) => {
        assert.equal(e.status, 400);
        assert.equal(e.code, "context_length_exceeded");
        return true;
    });
});

test("keys", async () => {
    const stranger = new OpenAI({ baseURL: url + "/v1", apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(stranger.models.list(), OpenAI.AuthenticationError);
    assert.equal((await fetch(url + "/v1/models")).status, 401);
    assert.equal((await fetch(url + "/metrics")).status, 401);
    assert.equal((await fetch(url + "/health")).status, 200);
    const claude = new Anthropic({ baseURL: url, apiKey: "wrong", maxRetries: 0 });
    await assert.rejects(
        claude.messages.create({ model, max_tokens: 5, messages: [user("x")] }),
        (e) => {
            assert.ok(e instanceof Anthropic.AuthenticationError);
            assert.equal(e.error.type, "error");
            assert.equal(e.error.error.type, "authentication_error");
            return true;
        },
    );
});

test("paths, methods and bodies", async () => {
    const none = await get("/v1/no/such/path");
    assert.equal(none.status, 404);
    assert.ok((await none.json()).error.message);
    assert.equal((await get("/v1/chat/completions")).status, 405);
    for (const body of ["", "{", "[]", "null", '"x"', '{"messages": }']) {
        const r = await post("/v1/chat/completions", body);
        assert.equal(r.status, 400, body);
        assert.equal((await r.json()).error.type, "invalid_request_error");
    }
    const deep = "[".repeat(100000);
    assert.equal((await post("/v1/chat/completions", deep)).status, 400);
    assert.ok((await get("/v1/models")).headers.get("x-request-id"));
});

test("foreign hosts and origins", async () => {
    const r = await post("/v1/chat/completions", { messages: [] }, { origin: "http://evil.test" });
    assert.equal(r.status, 403);
});

test("a client that leaves ends its request", async () => {
    const counters = async () => (await getJson("/metrics")).counters;
    const before = await counters();
    const stream = await chat("Count from 1 to 30.", {
        stream: true,
        max_tokens: 4000,
        logit_bias: { 8180: -100, 8182: -100 },
    });
    let pieces = 0;
    for await (const chunk of stream) {
        pieces += chunk.choices.length;
        if (pieces === 4) break;
    }
    stream.controller.abort();
    await eventually("the request was cancelled", async () => {
        const now = await counters();
        return now.cancelled === before.cancelled + 1;
    });
    await eventually("nothing is running", idle);
    assert.match((await chat(NORWAY)).choices[0].message.content, /Oslo/);
});

test("a request that is aborted before its answer", async () => {
    const stop = new AbortController();
    const promise = openai.chat.completions.create(
        {
            ...base,
            messages: [user("Count from 1 to 30.")],
            max_tokens: 4000,
            logit_bias: { 8180: -100, 8182: -100 },
        },
        { signal: stop.signal },
    );
    setTimeout(() => stop.abort(), 150);
    await assert.rejects(promise, OpenAI.APIUserAbortError);
    await eventually("nothing is running", idle);
    assert.match((await chat(NORWAY)).choices[0].message.content, /Oslo/);
});

test("an Anthropic request without max_tokens", async () => {
    await assert.rejects(anthropic.messages.create({ model, messages: [user("x")] }), (e) => {
        assert.equal(e.status, 400);
        assert.equal(e.error.error.type, "invalid_request_error");
        assert.match(e.error.error.message, /max_tokens/);
        return true;
    });
});
