// Random schemas, answers sampled at temperature 1.5 with drafts on, validated by ajv.
//
// MTPLX_SCHEMAS: how many, default 40. MTPLX_SCHEMA_SEED: of the first, default 1. A failure names
// its seed, which reproduces the schema and (at a fixed depth) the answer.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chat, validate } from "./lib.mjs";
import { randomSchema } from "./schemas.mjs";

const count = Number(process.env.MTPLX_SCHEMAS ?? 40);
const first = Number(process.env.MTPLX_SCHEMA_SEED ?? 1);
const PROMPTS = ["Write a haiku", "Tell me a story.", "What is the weather in Lisbon in celsius?"];

const total = { answers: 0, cut: 0, tokens: 0, cycles: 0, drafted: 0, accepted: 0 };

async function run(seed) {
    const schema = randomSchema(seed);
    const r = await chat(PROMPTS[seed % PROMPTS.length], {
        temperature: 1.5,
        seed,
        max_tokens: 2000,
        depth: 3,
        mtplx_stats: true,
        response_format: { type: "json_schema", json_schema: { name: "s", strict: true, schema } },
    });
    const [choice] = r.choices;
    total.answers++;
    total.tokens += r.usage.completion_tokens;
    total.cycles += r.mtplx_stats.cycles;
    for (const d of r.mtplx_stats.acceptance_by_depth) {
        total.drafted += d.drafted;
        total.accepted += d.accepted;
    }
    if (choice.finish_reason === "length") {
        total.cut++;
        console.log(`# seed ${seed} did not end: ...${choice.message.content.slice(-80)}`);
        return;
    }
    assert.equal(choice.finish_reason, "stop");
    validate(schema, choice.message.content);
}

test(`${count} random schemas`, { timeout: 3_600_000 }, async () => {
    const failures = [];
    let seed = first;
    // A few at a time: the scheduler shares their passes, and answers do not depend on it.
    const worker = async () => {
        while (seed < first + count) {
            const mine = seed++;
            await run(mine).catch((e) => failures.push(`seed ${mine}: ${e.message}`));
        }
    };
    await Promise.all([worker(), worker(), worker(), worker()]);
    const per = (a, b) => (b > 0 ? (a / b).toFixed(3) : "-");
    console.log(
        `# ${total.answers} answers, ${total.cut} cut by max_tokens, ${total.tokens} tokens, ` +
            `${per(total.tokens, total.cycles)} tokens per forward, ` +
            `${total.accepted} of ${total.drafted} drafts accepted`,
    );
    assert.deepEqual(failures, []);
    assert.ok(total.cut <= count / 20, `${total.cut} answers did not end`);
    assert.ok(total.drafted > 0, "drafting was on");
    assert.ok(total.tokens > total.cycles, "a forward brings more than a token");
});
