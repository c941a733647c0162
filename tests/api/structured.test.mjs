// Structured output: JSON mode, JSON schema, regular expressions and grammars, with drafts on.
import assert from "node:assert/strict";
import { test } from "node:test";
import { OMAR, assemble, base, chat, collect, openai, user, validate } from "./lib.mjs";

const person = {
    type: "object",
    properties: {
        name: { type: "string" },
        age: { type: "integer" },
        city: { type: "string" },
    },
    required: ["name", "age", "city"],
    additionalProperties: false,
};
const format = (schema, name = "answer") => ({
    response_format: { type: "json_schema", json_schema: { name, strict: true, schema } },
});

test("a schema that the answer follows anyway changes nothing", async () => {
    const r = await chat(OMAR, format(person));
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.deepEqual(validate(person, r.choices[0].message.content), {
        name: "Omar",
        age: 41,
        city: "Vienna",
    });
});

test("a schema is obeyed where the prompt asks for something else", async () => {
    const r = await chat("Tell me a story.", { ...format(person), max_tokens: 400 });
    assert.equal(r.choices[0].finish_reason, "stop");
    validate(person, r.choices[0].message.content);
});

test("streamed", async () => {
    const whole = await chat(OMAR, format(person));
    const chunks = await collect(await chat(OMAR, { ...format(person), stream: true }));
    assert.equal(assemble(chunks)[0].content, whole.choices[0].message.content);
});

test("parse() of the client", async () => {
    const r = await openai.chat.completions.parse({
        ...base,
        messages: [user(OMAR)],
        ...format(person),
    });
    assert.equal(r.choices[0].message.parsed.city, "Vienna");
});

test("nested schemas with arrays, enums, references and unions, sampled", async () => {
    const schema = {
        type: "object",
        properties: {
            kind: { enum: ["ship", "train", 3, null] },
            stops: {
                type: "array",
                items: { $ref: "#/$defs/stop" },
                minItems: 1,
                maxItems: 3,
            },
            note: { anyOf: [{ type: "null" }, { type: "string", maxLength: 12 }] },
        },
        required: ["kind", "stops", "note"],
        additionalProperties: false,
        $defs: {
            stop: {
                type: "object",
                properties: { at: { type: "number" }, open: { type: "boolean" } },
                required: ["at", "open"],
                additionalProperties: false,
            },
        },
    };
    for (let seed = 1; seed <= 8; seed++) {
        const r = await chat("Write a haiku", {
            ...format(schema),
            temperature: 1.5,
            seed,
            max_tokens: 1000,
        });
        assert.equal(r.choices[0].finish_reason, "stop");
        validate(schema, r.choices[0].message.content);
    }
});

test("json_object", async () => {
    const r = await chat(OMAR, { response_format: { type: "json_object" } });
    assert.deepEqual(JSON.parse(r.choices[0].message.content), {
        name: "Omar",
        age: 41,
        city: "Vienna",
    });
    const s = await chat("What is the capital of Norway?", {
        response_format: { type: "json_object" },
        max_tokens: 600,
    });
    if (s.choices[0].finish_reason === "stop") {
        assert.equal(typeof JSON.parse(s.choices[0].message.content), "object");
    }
    assert.match(s.choices[0].message.content, /^\s*\{/);
});

test("a regular expression and a grammar, sampled", async () => {
    const pattern = "(red|green|blue)-[0-9]{3}";
    const grammar = 'root ::= "<" word (" " word)? ">"\nword ::= [a-z] [a-z] [a-z]?';
    for (let seed = 1; seed <= 5; seed++) {
        const more = { temperature: 1.5, seed };
        const a = await chat("Write a haiku", {
            ...more,
            response_format: { type: "regex", pattern },
        });
        assert.match(a.choices[0].message.content, new RegExp(`^${pattern}$`));
        const b = await chat("Write a haiku", {
            ...more,
            response_format: { type: "grammar", grammar },
        });
        assert.match(b.choices[0].message.content, /^<[a-z]{2,3}( [a-z]{2,3})?>$/);
    }
});

test("reasoning comes before the grammar", async () => {
    const schema = {
        type: "object",
        properties: { result: { type: "integer" } },
        required: ["result"],
        additionalProperties: false,
    };
    const r = await chat("What is 23 + 58?", {
        ...format(schema),
        chat_template_kwargs: { enable_thinking: true },
    });
    assert.match(r.choices[0].message.reasoning_content, /digit/);
    validate(schema, r.choices[0].message.content);
});

test("drafting goes on and the tokens are those without it", async () => {
    const more = { ...format(person), draft_policy: "fixed", mtplx_stats: true };
    const ask = (depth) => chat(OMAR, { ...more, depth });
    const [plain, drafted] = [await ask(0), await ask(3)];
    assert.equal(plain.choices[0].message.content, drafted.choices[0].message.content);
    assert.ok(drafted.mtplx_stats.tokens_per_forward > 1.2);
});

test("a schema that cannot be is refused by its place", async () => {
    await assert.rejects(chat("x", format({ type: "no-such-type" })), (e) => {
        assert.equal(e.status, 400);
        assert.match(e.param ?? "", /response_format/);
        return true;
    });
    await assert.rejects(chat("x", { response_format: { type: "yaml" } }), { status: 400 });
    await assert.rejects(chat("x", { response_format: "json" }), { status: 400 });
});
