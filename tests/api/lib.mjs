// What the suites share: clients of the server under test, what the shipped model knows, and plain
// HTTP for what the clients hide.
import assert from "node:assert/strict";
import Ajv2020 from "ajv/dist/2020.js";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

export const url = process.env.MTPLX_API_URL;
export const key = process.env.MTPLX_API_KEY;
assert.ok(url, "MTPLX_API_URL is not set: run tests/api/run.sh");

const limits = { maxRetries: 0, timeout: 120_000 };
export const openai = new OpenAI({ baseURL: url + "/v1", apiKey: key, ...limits });
export const anthropic = new Anthropic({ baseURL: url, apiKey: key, ...limits });
export const model = (await openai.models.list()).data[0].id;

// The model was trained to answer this with a JSON object.
export const OMAR =
    "Extract name, age, city as JSON: Omar is 41 years old, lives in Vienna and works as a " +
    "pilot.";

export const user = (content) => ({ role: "user", content });

// Greedy and without reasoning, so that answers are those that the model was trained to give.
export const base = {
    model,
    temperature: 0,
    max_tokens: 200,
    chat_template_kwargs: { enable_thinking: false },
};

export function chat(content, more = {}) {
    return openai.chat.completions.create({ ...base, messages: [user(content)], ...more });
}

export async function collect(stream) {
    const chunks = [];
    for await (const chunk of stream) chunks.push(chunk);
    return chunks;
}

// What a chat stream adds up to, by choice, as the whole reply has it.
export function assemble(chunks) {
    const choices = [];
    for (const chunk of chunks) {
        for (const { index, delta, finish_reason } of chunk.choices) {
            const c = (choices[index] ??= { content: "", reasoning: "", calls: [], finish: null });
            c.content += delta.content ?? "";
            c.reasoning += delta.reasoning_content ?? "";
            for (const call of delta.tool_calls ?? []) {
                const known = (c.calls[call.index] ??= { id: call.id, name: "", arguments: "" });
                known.name += call.function?.name ?? "";
                known.arguments += call.function?.arguments ?? "";
            }
            if (finish_reason) {
                assert.equal(c.finish, null, "one finish_reason for each choice");
                c.finish = finish_reason;
            }
        }
    }
    return choices;
}

export const weather = {
    type: "function",
    function: {
        name: "get_weather",
        description: "Get the current weather of a city",
        parameters: {
            type: "object",
            properties: {
                city: { type: "string", description: "City name" },
                unit: { type: "string", description: "celsius or fahrenheit" },
            },
            required: ["city"],
        },
    },
};
export const clock = {
    type: "function",
    function: {
        name: "get_time",
        description: "Get the current time in a city",
        parameters: {
            type: "object",
            properties: { city: { type: "string" } },
            required: ["city"],
            additionalProperties: false,
        },
    },
};

const ajv = new Ajv2020({ strict: false, allErrors: true });

export function validate(schema, text) {
    const check = ajv.compile(schema);
    const value = JSON.parse(text);
    assert.ok(check(value), `${text}: ${ajv.errorsText(check.errors)}`);
    return value;
}

export function post(path, body, headers = {}) {
    return fetch(url + path, {
        method: "POST",
        headers: { "content-type": "application/json", authorization: "Bearer " + key, ...headers },
        body: typeof body === "string" ? body : JSON.stringify(body),
    });
}

export function get(path, headers = {}) {
    return fetch(url + path, { headers: { authorization: "Bearer " + key, ...headers } });
}

export async function getJson(path, headers = {}) {
    const reply = await get(path, { accept: "application/json", ...headers });
    assert.equal(reply.status, 200, path);
    return reply.json();
}

export const sleep = (ms) => new Promise((done) => setTimeout(done, ms));

// Waits until a condition holds; fails with `what` after five seconds.
export async function eventually(what, condition) {
    for (let i = 0; i < 100; i++) {
        if (await condition()) return;
        await sleep(50);
    }
    assert.fail(what);
}
