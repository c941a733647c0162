// Chat completions, whole and streamed: answers, logprobs, choices, stop strings, seeds, usage.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
    OMAR,
    assemble,
    base,
    chat,
    collect,
    getJson,
    model,
    openai,
    post,
    user,
    weather as WEATHER,
} from "./lib.mjs";

const NORWAY = "What is the capital of Norway?";
const LISBON = "What is the weather in Lisbon in celsius?";
const OSLO = "The capital of Norway is Oslo.";

test("a whole answer", async () => {
    const r = await chat(NORWAY);
    assert.match(r.id, /^chatcmpl-/);
    assert.equal(r.object, "chat.completion");
    assert.equal(r.model, model);
    assert.ok(Math.abs(r.created - Date.now() / 1000) < 300);
    assert.equal(r.choices.length, 1);
    assert.equal(r.choices[0].index, 0);
    assert.equal(r.choices[0].message.role, "assistant");
    assert.equal(r.choices[0].message.content, OSLO);
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
    assert.equal(r.usage.prompt_tokens, 20);
    assert.equal(r.usage.completion_tokens, 11);
});

test("code, JSON, a list", async () => {
    const code = await chat("Write a Python function that sorts a list with bubble sort.");
    assert.match(code.choices[0].message.content, /def bubble_sort\(items\):/);
    const json = await chat(OMAR);
    assert.deepEqual(JSON.parse(json.choices[0].message.content), {
        name: "Omar",
        age: 41,
        city: "Vienna",
    });
    const months = await chat("List the months of the year.");
    assert.match(months.choices[0].message.content, /January, .*November and December\./);
});

test("system messages and content parts", async () => {
    const r = await openai.chat.completions.create({
        ...base,
        messages: [
            { role: "system", content: "You are a helpful assistant." },
            {
                role: "user",
                content: [{ type: "text", text: NORWAY }],
            },
        ],
    });
    assert.equal(r.choices[0].message.content, OSLO);
    const parts = [
        { type: "text", text: "Repeat this exactly:" },
        { type: "text", text: "small green river old lamp" },
    ];
    const two = await openai.chat.completions.create({ ...base, messages: [user(parts)] });
    assert.ok(two.usage.prompt_tokens > 20);
});

test("a streamed answer is the whole one", async () => {
    const chunks = await collect(await chat(NORWAY, { stream: true }));
    const [choice] = assemble(chunks);
    assert.equal(choice.content, OSLO);
    assert.equal(choice.finish, "stop");
    assert.equal(chunks[0].choices[0].delta.role, "assistant");
    assert.equal(new Set(chunks.map((c) => c.id)).size, 1);
    for (const c of chunks) assert.equal(c.object, "chat.completion.chunk");
    assert.ok(chunks.every((c) => !c.usage), "no usage unless asked for");
});

test("stream_options.include_usage", async () => {
    const whole = await chat(NORWAY);
    const chunks = await collect(
        await chat(NORWAY, { stream: true, stream_options: { include_usage: true } }),
    );
    const last = chunks.at(-1);
    assert.deepEqual(last.choices, []);
    assert.equal(last.usage.prompt_tokens, whole.usage.prompt_tokens);
    assert.equal(last.usage.completion_tokens, whole.usage.completion_tokens);
    assert.ok(chunks.slice(0, -1).every((c) => c.usage === null || c.usage === undefined));
});

test("the helper of the client that folds a stream", async () => {
    const stream = openai.chat.completions.stream({ ...base, messages: [user(NORWAY)] });
    const final = await stream.finalChatCompletion();
    assert.equal(final.choices[0].message.content, OSLO);
});

test("reasoning comes apart from the answer", async () => {
    const more = { chat_template_kwargs: { enable_thinking: true } };
    const r = await chat("What is 23 + 58?", more);
    const message = r.choices[0].message;
    assert.match(message.content, /81/);
    assert.doesNotMatch(message.content, /think>/);
    assert.match(message.reasoning_content, /digit/);
    assert.ok(r.usage.completion_tokens_details.reasoning_tokens > 5);
    const chunks = await collect(await chat("What is 23 + 58?", { ...more, stream: true }));
    const [choice] = assemble(chunks);
    assert.equal(choice.content, message.content);
    assert.equal(choice.reasoning, message.reasoning_content);
});

test("max_tokens and max_completion_tokens", async () => {
    const r = await chat("Count from 1 to 30.", { max_tokens: 7 });
    assert.equal(r.choices[0].finish_reason, "length");
    assert.equal(r.usage.completion_tokens, 7);
    const { max_tokens, ...rest } = base;
    const s = await openai.chat.completions.create({
        ...rest,
        messages: [user("Count from 1 to 30.")],
        max_completion_tokens: 5,
    });
    assert.equal(s.usage.completion_tokens, 5);
    assert.ok(r.choices[0].message.content.startsWith(s.choices[0].message.content));
});

test("stop strings, whole and streamed", async () => {
    const ask = { stop: [" 20,", "never"] };
    const r = await chat("Count from 1 to 30.", ask);
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.ok(r.choices[0].message.content.endsWith("18, 19,"), r.choices[0].message.content);
    const chunks = await collect(await chat("Count from 1 to 30.", { ...ask, stream: true }));
    assert.equal(assemble(chunks)[0].content, r.choices[0].message.content);
    assert.equal(assemble(chunks)[0].finish, "stop");
    const one = await chat("Count from 1 to 30.", { stop: "5" });
    assert.equal(one.choices[0].message.content, "1, 2, 3, 4, ");
});

test("logprobs: ordered, below one in sum, and of the text", async () => {
    const r = await chat(NORWAY, { logprobs: true, top_logprobs: 5 });
    const content = r.choices[0].logprobs.content;
    assert.equal(content.map((t) => t.token).join("").replace("<|im_end|>", ""), OSLO);
    const bytes = content.flatMap((t) => t.bytes ?? []);
    assert.equal(Buffer.from(bytes).toString().replace("<|im_end|>", ""), OSLO);
    for (const t of content) {
        assert.ok(t.logprob <= 0);
        assert.equal(t.top_logprobs.length, 5);
        const tops = t.top_logprobs.map((o) => o.logprob);
        assert.deepEqual(tops, [...tops].sort((a, b) => b - a));
        const sum = tops.reduce((s, x) => s + Math.exp(x), 0);
        assert.ok(sum > 0.2 && sum < 1 + 1e-4, `sum ${sum}`);
        // Greedy: what was chosen is the likeliest.
        assert.equal(t.top_logprobs[0].token, t.token);
        assert.ok(Math.abs(t.top_logprobs[0].logprob - t.logprob) < 1e-6);
    }
});

test("streamed logprobs are the whole ones, with drafts or without", async () => {
    const more = { logprobs: true, top_logprobs: 2 };
    const whole = (await chat(NORWAY, { ...more, depth: 0 })).choices[0].logprobs.content;
    const chunks = await collect(await chat(NORWAY, { ...more, depth: 4, stream: true }));
    const parts = chunks.flatMap((c) => c.choices.flatMap((x) => x.logprobs?.content ?? []));
    assert.deepEqual(parts.map((t) => t.token), whole.map((t) => t.token));
    parts.forEach((t, i) => assert.ok(Math.abs(t.logprob - whole[i].logprob) < 1e-4));
});

test("n = 2, whole and streamed", async () => {
    const more = { n: 2, temperature: 1, seed: 11, max_tokens: 24 };
    const r = await chat("Tell me a story.", more);
    assert.deepEqual(r.choices.map((c) => c.index).sort(), [0, 1]);
    assert.notEqual(r.choices[0].message.content, r.choices[1].message.content);
    assert.ok(r.usage.completion_tokens <= 48 && r.usage.completion_tokens > 24);
    const chunks = await collect(await chat("Tell me a story.", { ...more, stream: true }));
    const choices = assemble(chunks);
    assert.equal(choices.length, 2);
    for (const c of r.choices) assert.equal(choices[c.index].content, c.message.content);
});

test("seeds", async () => {
    const run = async (seed) => {
        const r = await chat("Tell me a story.", { temperature: 1, seed, max_tokens: 24 });
        return r.choices[0].message.content;
    };
    const [a, b, c] = [await run(5), await run(5), await run(6)];
    assert.equal(a, b);
    assert.notEqual(a, c);
});

test("logit_bias bans and forces", async () => {
    const { tokens } = await (await post("/tokenize", { content: "The capital" })).json();
    const banned = await chat(NORWAY, { logit_bias: { [tokens[0]]: -100 } });
    assert.ok(!banned.choices[0].message.content.startsWith("The"));
    const forced = await chat(NORWAY, { logit_bias: { [tokens[0]]: 100 }, max_tokens: 3 });
    assert.equal(forced.choices[0].message.content, "TheTheThe");
});

test("greedy answers do not depend on drafting, and the statistics show it", async () => {
    const more = { draft_policy: "fixed", mtplx_stats: true };
    const ask = (depth) => chat("Count from 1 to 30.", { ...more, depth });
    const [plain, drafted] = [await ask(0), await ask(3)];
    assert.equal(plain.choices[0].message.content, drafted.choices[0].message.content);
    assert.match(plain.choices[0].message.content, /^1, 2, 3, .* 29, 30\.$/);
    assert.ok(drafted.mtplx_stats, "mtplx_stats is in the answer");
    assert.ok(drafted.mtplx_stats.tokens_per_forward > 1.2, JSON.stringify(drafted.mtplx_stats));
    assert.ok(drafted.mtplx_stats.ttft_s > 0);
});

// The template writes a tool loop as the model wrote it, so the next prompt extends what is kept.
test("a tool result is read behind the kept call", async () => {
    const call = await chat(LISBON, { tools: [WEATHER], mtplx_stats: true });
    const [message] = [call.choices[0].message];
    const result = { role: "tool", tool_call_id: message.tool_calls[0].id, content: "sunny" };
    const next = await openai.chat.completions.create({
        ...base,
        tools: [WEATHER],
        messages: [user(LISBON), message, result],
        mtplx_stats: true,
    });
    const had = call.usage.prompt_tokens + call.usage.completion_tokens - 1;
    const cached = next.usage.prompt_tokens_details.cached_tokens;
    assert.ok(cached >= had, `${cached} of ${had}`); // turn alignment may have read on
    assert.equal(next.mtplx_stats.new_prefill_tokens, next.usage.prompt_tokens - cached);
    const cold = await openai.chat.completions.create(
        { ...base, tools: [WEATHER], messages: [user(LISBON), message, result] },
        { headers: { "x-mtplx-cache-mode": "bypass" } },
    );
    assert.equal(cold.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal(cold.choices[0].message.content, next.choices[0].message.content);
});

test("a stream opens while its request still waits for a place", async () => {
    const more = { stream: true, max_tokens: 4000, logit_bias: { 8182: -100, 8180: -100 } };
    const streams = await Promise.all(Array.from({ length: 10 }, () => chat("Tell me a story.", more)));
    const { active, queued } = await getJson("/v1/mtplx/snapshot");
    assert.ok(active + queued >= 10, `${active} active, ${queued} queued`);
    for (const s of streams) s.controller.abort();
});

test("answers at once are those of one after the other", async () => {
    const questions = [NORWAY, "Count from 3 to 17.", "List the months of the year.", OMAR];
    const alone = [];
    for (const q of questions) alone.push((await chat(q)).choices[0].message.content);
    const together = await Promise.all(questions.map((q) => chat(q)));
    assert.deepEqual(together.map((r) => r.choices[0].message.content), alone);
});

test("unknown fields are ignored and counted", async () => {
    const count = async () => (await getJson("/metrics")).counters.unknown_fields;
    const before = await count();
    const r = await chat(NORWAY, { no_such_field: 1, another_one: {} });
    assert.equal(r.choices[0].message.content, OSLO);
    assert.equal((await count()) - before, 2);
});
