// Text completions, embeddings and models.
import assert from "node:assert/strict";
import { test } from "node:test";
import { collect, model, openai } from "./lib.mjs";

const PROMPT =
    "<|im_start|>user\nWhat is the capital of Norway?<|im_end|>\n" +
    "<|im_start|>assistant\n<think>\n\n</think>\n\n";
const ask = (more) =>
    openai.completions.create({ model, prompt: PROMPT, temperature: 0, max_tokens: 40, ...more });

test("a completion", async () => {
    const r = await ask({});
    assert.match(r.id, /^cmpl-/);
    assert.equal(r.object, "text_completion");
    assert.equal(r.choices[0].text, "The capital of Norway is Oslo.");
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.equal(r.usage.prompt_tokens, 20);
});

test("streamed, with usage", async () => {
    const chunks = await collect(
        await ask({ stream: true, stream_options: { include_usage: true } }),
    );
    const text = chunks.map((c) => c.choices[0]?.text ?? "").join("");
    assert.equal(text, "The capital of Norway is Oslo.");
    assert.equal(chunks.at(-1).usage.prompt_tokens, 20);
});

test("several prompts", async () => {
    const r = await ask({ prompt: [PROMPT, PROMPT.replace("Norway", "France")] });
    assert.deepEqual(
        [...r.choices].sort((a, b) => a.index - b.index).map((c) => c.text),
        ["The capital of Norway is Oslo.", "The capital of France is Paris."],
    );
});

test("stop and max_tokens", async () => {
    assert.equal((await ask({ stop: " is" })).choices[0].text, "The capital of Norway");
    const r = await ask({ max_tokens: 2 });
    assert.equal(r.choices[0].finish_reason, "length");
    assert.equal(r.usage.completion_tokens, 2);
});

test("echo with logprobs scores the prompt", async () => {
    const text = "The capital of Norway is Oslo.";
    const r = await ask({ prompt: text, max_tokens: 0, echo: true, logprobs: 2 });
    const choice = r.choices[0];
    assert.equal(choice.text, text);
    const l = choice.logprobs;
    assert.equal(l.tokens.join(""), text);
    assert.equal(l.token_logprobs.length, l.tokens.length);
    assert.equal(l.token_logprobs[0], null, "nothing stands before the first token");
    for (const p of l.token_logprobs.slice(1)) assert.ok(p <= 0 && p > -30);
    for (const t of l.top_logprobs.slice(1)) assert.ok(Object.keys(t).length >= 2);
    l.tokens.reduce((at, t, i) => {
        assert.equal(l.text_offset[i], at);
        return at + t.length;
    }, 0);
});

test("logprobs of an answer", async () => {
    const l = (await ask({ logprobs: 3 })).choices[0].logprobs;
    assert.equal(l.tokens.join("").replace("<|im_end|>", ""), "The capital of Norway is Oslo.");
    l.top_logprobs.forEach((tops, i) => {
        const best = Math.max(...Object.values(tops));
        assert.ok(Math.abs(best - l.token_logprobs[i]) < 1e-6);
    });
});

test("embeddings are stable, of unit length or not zero, and tell texts apart", async () => {
    const input = ["The sea is blue.", "The ocean is blue.", "def f(x): return x"];
    const embed = async (more = {}) =>
        (await openai.embeddings.create({ model, input, encoding_format: "float", ...more })).data;
    const [data, again] = [await embed(), await embed()];
    assert.equal(data.length, 3);
    assert.deepEqual(data.map((d) => d.index), [0, 1, 2]);
    assert.equal(data[0].embedding.length, 512);
    assert.deepEqual(data, again);
    const dot = (a, b) => a.reduce((s, x, i) => s + x * b[i], 0);
    const cos = (a, b) => dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
    const [sea, ocean, code] = data.map((d) => d.embedding);
    assert.ok(cos(sea, ocean) > cos(sea, code));
});

test("embeddings as base64, the client's default", async () => {
    const one = { model, input: "The sea is blue." };
    const a = await openai.embeddings.create(one);
    const b = await openai.embeddings.create({ ...one, encoding_format: "float" });
    assert.equal(a.data[0].embedding.length, 512);
    a.data[0].embedding.forEach((x, i) =>
        assert.ok(Math.abs(x - b.data[0].embedding[i]) < 1e-6),
    );
    assert.ok(a.usage.prompt_tokens > 0);
});

test("models", async () => {
    const list = await collect(openai.models.list());
    assert.equal(list.length, 1);
    const m = list[0];
    assert.equal(m.object, "model");
    for (const name of ["context_length", "max_model_len", "max_context_length"]) {
        assert.equal(m[name], 8192);
    }
    assert.equal(m.supports_vision, false);
    assert.equal(m.architecture, "qwen3_5");
    assert.deepEqual(await openai.models.retrieve(model), m);
    await assert.rejects(openai.models.retrieve("no-such-model"), (e) => {
        assert.equal(e.status, 404);
        assert.equal(e.code, "model_not_found");
        return true;
    });
});
