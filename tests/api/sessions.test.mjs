// The session bank: what answers tell about reuse in each API, and the admin routes that list, pin
// and forget.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
    anthropic, base, chat, collect, eventually, get, getJson, key, model, openai, post, url, user,
    weather,
} from "./lib.mjs";

const LONG = "Repeat this exactly: " + "small green river old lamp ".repeat(12);

async function postJson(path, body = {}, status = 200) {
    const reply = await post(path, body);
    assert.equal(reply.status, status, path);
    return reply.json();
}

async function remove(path, status = 200) {
    const headers = { authorization: "Bearer " + key };
    const reply = await fetch(url + path, { method: "DELETE", headers });
    assert.equal(reply.status, status, path);
    return reply.json();
}

// Waits until nothing is read ahead any more.
async function aligned(atLeast) {
    await eventually("turn alignment is done", async () => {
        const { turn_alignment: t } = await getJson("/admin/cache");
        return t.predicted + t.unpredicted >= atLeast && t.waiting === 0;
    });
    return (await getJson("/admin/cache")).turn_alignment;
}

test("chat completions tell what was reused and why not more", async () => {
    await remove("/admin/sessions");
    const first = await chat(LONG, { max_tokens: 8 });
    assert.equal(first.usage.prompt_tokens_details.cached_tokens, 0);
    assert.equal(first.mtplx_stats.cache_miss_reason, "new_session");
    assert.equal(first.mtplx_stats.cache_restored, "none");
    const again = await chat(LONG, { max_tokens: 8 });
    assert.equal(again.choices[0].message.content, first.choices[0].message.content);
    assert.equal(again.mtplx_stats.new_prefill_tokens, 1);
    assert.equal(again.mtplx_stats.cache_miss_reason, "none");
    assert.equal(again.mtplx_stats.cache_from_disk, false);
    assert.ok(again.mtplx_stats.cache_restore_ms >= 0);
    const chunks = await collect(
        await openai.chat.completions.create({
            ...base,
            max_tokens: 8,
            messages: [user(LONG)],
            stream: true,
            stream_options: { include_usage: true },
        }),
    );
    const last = chunks.find((c) => c.choices[0]?.finish_reason);
    assert.equal(last.mtplx_stats.new_prefill_tokens, 1);
    assert.equal(chunks.at(-1).usage.prompt_tokens_details.cached_tokens, again.usage.prompt_tokens - 1);
    const off = await openai.chat.completions.create(
        { ...base, max_tokens: 8, messages: [user(LONG)] },
        { headers: { "x-mtplx-cache-mode": "bypass" } },
    );
    assert.equal(off.mtplx_stats.cache_miss_reason, "bypass");
    assert.equal(off.usage.prompt_tokens_details.cached_tokens, 0);
});

test("the second turn of a chat reads the new message only", async () => {
    const before = await aligned(0);
    const messages = [user("What is the capital of Greece?")];
    const first = await openai.chat.completions.create({ ...base, messages });
    await aligned(before.predicted + before.unpredicted + 1);
    messages.push(first.choices[0].message, user("What is the capital of Italy?"));
    const second = await openai.chat.completions.create({ ...base, messages });
    const fresh = await openai.chat.completions.create({ ...base, messages: messages.slice(2) });
    // Another conversation that starts with the message: as many tokens, but for the first.
    assert.ok(
        second.mtplx_stats.new_prefill_tokens <= fresh.usage.prompt_tokens,
        JSON.stringify(second.mtplx_stats),
    );
    const { matched, mismatched } = (await getJson("/admin/cache")).turn_alignment;
    assert.equal(matched, before.matched + 1);
    assert.equal(mismatched, before.mismatched);
});

test("Messages and Responses tell the same in their own fields", async () => {
    const ask = () =>
        anthropic.messages.create({ model, max_tokens: 8, temperature: 0, messages: [user(LONG)] });
    await ask();
    const m = await ask();
    assert.equal(m.usage.input_tokens, 1);
    assert.ok(m.usage.cache_read_input_tokens > 60);
    assert.equal(m.mtplx_stats.cache_miss_reason, "none");
    const events = await collect(
        await anthropic.messages.create({
            model,
            max_tokens: 8,
            temperature: 0,
            messages: [user(LONG)],
            stream: true,
        }),
    );
    const delta = events.find((e) => e.type === "message_delta");
    assert.equal(delta.usage.cache_read_input_tokens, m.usage.cache_read_input_tokens);
    assert.equal(delta.mtplx_stats.cache_restored, "exact");
    const respond = () =>
        openai.responses.create({ model, input: LONG, max_output_tokens: 16, temperature: 0 });
    await respond();
    const r = await respond();
    assert.equal(r.usage.input_tokens_details.cached_tokens, r.usage.input_tokens - 1);
    assert.equal(r.mtplx_stats.cache_miss_reason, "none");
});

// Runs `turn` and waits until its next turn is predicted and read.
async function step(turn) {
    const before = await aligned(0);
    const reply = await turn();
    await aligned(before.predicted + before.unpredicted + 1);
    return reply;
}

async function matches(turn) {
    const before = await aligned(0);
    const reply = await turn();
    const after = (await getJson("/admin/cache")).turn_alignment;
    assert.equal(after.matched, before.matched + 1, JSON.stringify(after));
    assert.equal(after.mismatched, before.mismatched, JSON.stringify(after));
    await aligned(before.predicted + before.unpredicted + 1);
    return reply;
}

test("next turns of Messages are predicted, with thinking and tools", async () => {
    const tools = [
        {
            name: weather.function.name,
            description: weather.function.description,
            input_schema: weather.function.parameters,
        },
    ];
    const thinking = { type: "enabled", budget_tokens: 1024 };
    const more = { model, max_tokens: 2000, temperature: 0, thinking };
    const messages = [user("What is 5+8?")];
    const first = await step(() => anthropic.messages.create({ ...more, messages }));
    messages.push({ role: "assistant", content: first.content }, user("And what is 7+9?"));
    const second = await matches(() => anthropic.messages.create({ ...more, messages }));
    assert.ok(second.usage.input_tokens < 24, JSON.stringify(second.usage));

    const ask = [user("What is the weather in Lisbon?")];
    const call = await step(() =>
        anthropic.messages.create({ ...more, thinking: undefined, tools, messages: ask }),
    );
    const use = call.content.find((b) => b.type === "tool_use");
    assert.ok(use, JSON.stringify(call.content));
    ask.push(
        { role: "assistant", content: call.content },
        user([{ type: "tool_result", tool_use_id: use.id, content: '{"sky": "clear"}' }]),
    );
    await matches(() =>
        anthropic.messages.create({ ...more, thinking: undefined, tools, messages: ask }),
    );
});

test("next turns of Responses are predicted, by id and by items", async () => {
    const more = { model, temperature: 0, max_output_tokens: 200, reasoning: { effort: "medium" } };
    const first = await step(() => openai.responses.create({ ...more, input: "What is 6+8?" }));
    const second = await matches(() =>
        openai.responses.create({
            ...more,
            input: "And what is 4+9?",
            previous_response_id: first.id,
        }),
    );
    const { input_tokens: all, input_tokens_details: details } = second.usage;
    assert.ok(all - details.cached_tokens < 24, JSON.stringify(second.usage));
    const input = [user("What is 3+8?")];
    const third = await step(() => openai.responses.create({ ...more, input }));
    input.push(...third.output, user("And what is 2+9?"));
    await matches(() => openai.responses.create({ ...more, input }));
});

test("sessions are listed, pinned and forgotten", async () => {
    await remove("/admin/sessions");
    await chat(LONG, { max_tokens: 8, user: "erik" });
    await eventually("one is kept", async () => (await getJson("/admin/sessions")).count === 1);
    await aligned(0);
    const list = await getJson("/admin/sessions");
    const [s] = list.sessions;
    assert.match(s.id, /^key-[0-9a-f]{8}\.erik$/);
    assert.ok(s.tokens > 60 && s.bytes > 0 && s.age_s >= s.idle_s);
    assert.ok(s.entries.every((e) => e.id > 0 && e.tokens > 0 && typeof e.point === "string"));
    const cache = await getJson("/admin/cache");
    assert.equal(cache.bank.entries, list.entries);
    assert.equal(cache.bank.budget_bytes, list.budget_bytes);
    assert.equal(cache.ssd.mode, "off");

    assert.equal((await postJson(`/admin/sessions/${s.id}/pin`)).pinned, true);
    assert.equal((await getJson("/admin/sessions")).sessions[0].pinned, true);
    assert.equal((await postJson(`/admin/sessions/${s.id}/unpin`)).pinned, false);
    assert.equal((await getJson("/admin/sessions")).sessions[0].pinned, false);
    await postJson("/admin/sessions/nobody/pin", {}, 404);

    const entry = s.entries[0].id;
    assert.equal((await remove(`/admin/sessions/${entry}`)).cleared, 1);
    await remove(`/admin/sessions/${entry}`, 404);
    assert.ok((await remove(`/admin/sessions/${s.id}`)).cleared > 0);
    assert.equal((await getJson("/admin/sessions")).count, 0);
    await remove(`/admin/sessions/${s.id}`, 404);
    await postJson("/admin/cache/clear");
    const reply = await fetch(url + "/admin/sessions");
    assert.equal(reply.status, 401);
});

test("metrics count the bank", async () => {
    const text = await (await get("/metrics")).text();
    for (const name of [
        "mtplx_session_bank_entries",
        "mtplx_session_bank_budget_bytes",
        "mtplx_session_bank_hit_tokens_total",
        'mtplx_session_bank_dropped_total{cause="asked"}',
        'mtplx_session_bank_lookups_total{reason="new_session"}',
        'mtplx_turn_alignment_turns_total{prediction="matched"}',
    ])
        assert.ok(text.includes("\n" + name + " "), name);
});
