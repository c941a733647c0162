// The routes beside the dialects: health, metrics and their stream, snapshot, settings, tokens,
// cancellation. The session bank has a suite of its own.
import assert from "node:assert/strict";
import { test } from "node:test";
import { chat, collect, eventually, get, getJson, model, openai, post, url } from "./lib.mjs";

const LABEL = '[a-z_]+="(?:[^"\\\\]|\\\\.)*"';
const SAMPLE = new RegExp(`^([a-z_]+)(\\{${LABEL}(?:,${LABEL})*\\})? (\\S+)$`);
const NO_END = { 8180: -100, 8182: -100 };

async function postJson(path, body, status = 200) {
    const r = await post(path, body);
    const value = await r.json();
    assert.equal(r.status, status, JSON.stringify(value));
    return value;
}

test("health", async () => {
    const h = await getJson("/health");
    assert.equal(h.ok, true);
    assert.equal(h.status, "ok");
    assert.equal(h.model, model);
    assert.ok(h.startup.pid > 1 && h.startup.uptime_s >= 0);
    assert.equal(h.scheduler.config.mode, "mtp_batch");
    assert.match(h.model_path, /nano/);
    assert.ok(h.memory.limit_bytes > 0);
});

test("landing", async () => {
    assert.equal((await getJson("/")).name, "mtplx");
    assert.equal((await getJson("/v1")).name, "mtplx");
    assert.match(await (await get("/", { accept: "text/html" })).text(), /<h1>mtplx<\/h1>/);
});

test("metrics as Prometheus reads them", async () => {
    await chat("What is the capital of Norway?");
    const r = await get("/metrics");
    assert.match(r.headers.get("content-type"), /^text\/plain; version=0\.0\.4/);
    const types = {};
    let samples = 0;
    for (const line of (await r.text()).trimEnd().split("\n")) {
        const type = /^# TYPE ([a-z_]+) (counter|gauge|histogram)$/.exec(line);
        if (type) types[type[1]] = type[2];
        if (line.startsWith("#")) continue;
        const m = SAMPLE.exec(line);
        assert.ok(m, line);
        assert.ok(Number.isFinite(Number(m[3])), line);
        assert.ok(types[m[1]] ?? types[m[1].replace(/_(bucket|sum|count)$/, "")], line);
        samples++;
    }
    assert.ok(samples > 100);
    assert.equal(types.mtplx_ttft_seconds, "histogram");
});

test("metrics as JSON", async () => {
    const before = await getJson("/metrics");
    await chat("What is the capital of Norway?");
    await eventually("the answer is counted", async () => {
        const now = await getJson("/metrics");
        return now.counters.finished > before.counters.finished;
    });
    const m = await getJson("/metrics");
    assert.equal(m.latest.completion_tokens, 11);
    assert.equal(m.latest.finish_reason, "stop");
    assert.deepEqual(m.latest, m.recent[0]);
    assert.ok(m.recent.length <= 32);
    assert.equal(typeof m.tool_parse_counters.parsed, "number");
    assert.ok(m.counters.http_requests > 2);
});

test("the metrics stream", async () => {
    const stop = new AbortController();
    const r = await fetch(url + "/v1/mtplx/metrics/stream", {
        headers: { authorization: "Bearer " + process.env.MTPLX_API_KEY },
        signal: stop.signal,
    });
    assert.match(r.headers.get("content-type"), /^text\/event-stream/);
    const events = [];
    let text = "";
    const started = Date.now();
    for await (const piece of r.body) {
        text += Buffer.from(piece).toString();
        for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
            const data = /^data: (.*)$/m.exec(text.slice(0, end));
            if (data) events.push(JSON.parse(data[1]));
            text = text.slice(end + 2);
        }
        if (events.length >= 4) break;
    }
    stop.abort();
    assert.ok(Date.now() - started > 400, "an event each 200 ms, not more");
    assert.ok(events.every((e) => typeof e.active === "number" && e.memory.limit_bytes > 0));
    assert.ok(events[3].time_ms > events[0].time_ms);
    await eventually("the subscriber is forgotten", async () =>
        /^mtplx_metrics_subscribers 0$/m.test(await (await get("/metrics")).text()),
    );
});

test("snapshot and cancellation", async () => {
    const stream = await chat("Count from 1 to 30.", {
        stream: true,
        max_tokens: 6000,
        logit_bias: NO_END,
    });
    const reading = collect(stream).catch((e) => e);
    let job;
    await eventually("the request is listed", async () => {
        const s = await getJson("/v1/mtplx/snapshot");
        job = s.jobs.find((j) => j.state === "decode");
        return job;
    });
    assert.match(job.request_id, /^req_/);
    const reply = await postJson("/v1/mtplx/cancel/" + job.request_id, {});
    assert.deepEqual(reply.jobs, [job.id]);
    const end = await reading;
    assert.equal(end.code, "request_cancelled");
    await eventually("it is gone", async () => {
        const s = await getJson("/v1/mtplx/snapshot");
        return s.jobs.length === 0;
    });
    await postJson("/v1/mtplx/cancel/" + job.request_id, {}, 404);
    await postJson("/v1/mtplx/cancel/" + job.id, {}, 404);
    await postJson("/v1/mtplx/cancel/nothing", {}, 404);
});

// Streams that do not end by themselves, and where their chunks say what they belong to.
const endless = {
    chat: async () => {
        const more = { stream: true, max_tokens: 6000, logit_bias: NO_END };
        return [await chat("Tell me a story.", more), (e) => e.id];
    },
    completions: async () => {
        const more = { prompt: "Once upon a time", max_tokens: 6000, logit_bias: NO_END };
        return [await openai.completions.create({ model, stream: true, ...more }), (e) => e.id];
    },
};

test("cancellation by the id of the answer", async () => {
    for (const [name, start] of Object.entries(endless)) {
        const [stream, idOf] = await start();
        let id;
        let status;
        const ended = (async () => {
            for await (const event of stream) {
                if (id) continue;
                id = idOf(event);
                status = (await post("/v1/mtplx/cancel/" + id, {})).status;
            }
        })();
        const error = await ended.catch((e) => e);
        assert.equal(status, 200, `${name} ${id}`);
        assert.equal(error?.code, "request_cancelled", name);
    }
});

test("settings", async () => {
    const { settings, mutable, immutable } = await getJson("/v1/mtplx/settings");
    const names = mutable.filter((n) => n !== "adaptive_policy");
    assert.deepEqual(Object.keys(settings).sort(), names.sort());
    assert.equal(immutable.context_window, 8192);
    const change = { depth: 2, depth_policy: "fixed", max_active: 3 };
    const changed = await postJson("/v1/mtplx/settings", change);
    assert.equal(changed.settings.depth, 2);
    assert.equal(changed.settings.max_active, 3);
    assert.match((await chat("What is the capital of Norway?")).choices[0].message.content, /Oslo/);
    const wrong = await postJson("/v1/mtplx/settings", { depth: 1, temperature: "x" }, 400);
    assert.equal(wrong.error.param, "temperature");
    assert.equal((await postJson("/v1/mtplx/settings", { port: 1 }, 400)).error.param, "port");
    assert.equal((await postJson("/v1/mtplx/settings", { dept: 1 }, 400)).error.param, "dept");
    assert.equal((await getJson("/v1/mtplx/settings")).settings.depth, 2, "all or nothing");
    await postJson("/v1/mtplx/settings", settings);
    assert.deepEqual((await getJson("/v1/mtplx/settings")).settings, settings);
});

test("tokenize and detokenize, in both spellings", async () => {
    const text = "Grüße, 世界! <|im_end|>";
    const a = await postJson("/tokenize", { content: text });
    const b = await postJson("/tokenize", { prompt: text, add_special_tokens: true });
    assert.deepEqual(a, b);
    assert.equal(a.count, a.tokens.length);
    assert.equal(a.max_model_len, 8192);
    assert.equal(a.tokens.at(-1), 8182);
    const plain = await postJson("/tokenize", { content: text, parse_special: false });
    assert.notEqual(plain.tokens.at(-1), 8182);
    const back = await postJson("/detokenize", { tokens: a.tokens });
    assert.equal(back.content, text);
    assert.equal(back.prompt, text);
    const pieces = (await postJson("/tokenize", { content: text, with_pieces: true })).tokens;
    const bytes = pieces.flatMap((t) =>
        typeof t.piece === "string" ? [...Buffer.from(t.piece)] : t.piece,
    );
    assert.equal(Buffer.from(bytes).toString(), text);
    const messages = [{ role: "user", content: "What is the capital of Norway?" }];
    const chatted = await postJson("/tokenize", { messages, chat_template_kwargs: {} });
    assert.equal(chatted.count, 20);
    assert.equal((await postJson("/tokenize", { content: "" })).count, 0);
    assert.equal((await postJson("/tokenize", {}, 400)).error.param, "content");
    assert.equal((await postJson("/tokenize", { content: 5 }, 400)).error.param, "content");
    const wrong = await postJson("/detokenize", { tokens: [1, 99999] }, 400);
    assert.equal(wrong.error.param, "tokens[1]");
    assert.equal((await postJson("/detokenize", {}, 400)).error.param, "tokens");
});

test("prefill history and capabilities", async () => {
    const { history, capacity } = await getJson("/v1/mtplx/prefill_history");
    assert.equal(capacity, 100);
    assert.ok(history.length > 0 && history.length <= 100);
    assert.ok(history[0].prefill_s > 0);
    const c = await getJson("/v1/mtplx/app/capabilities");
    assert.equal(c.features.mtp, true);
    assert.ok(c.endpoints.includes("/v1/chat/completions"));
});
