// The session bank: what answers tell about reuse in each API, and the admin routes that list, pin
// and forget.
import assert from "node:assert/strict";
import { test } from "node:test";
import {
    anthropic, base, chat, collect, eventually, get, getJson, key, model, openai, post, url, user,
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
