// Hostile clients against a running server: mutated bodies on every route, raw bytes that are hardly
// HTTP, streams that are dropped, read slowly or not at all.
//
//   node fuzz.mjs URL SECONDS [SEED]
//
// The server has to stay up and answer an ordinary request throughout; any status is fine but a 500.
import { connect } from "node:net";
import { random } from "./schemas.mjs";

const [url, seconds, seed] = [
    new URL(process.argv[2]),
    Number(process.argv[3] ?? 60),
    Number(process.argv[4] ?? Date.now()),
];
const key = process.env.MTPLX_API_KEY ?? "none";
const next = random(seed);
const int = (n) => Math.floor(next() * n);
const pick = (list) => list[int(list.length)];
const maybe = (p) => next() < p;

const weather = {
    type: "object",
    properties: { city: { type: "string" }, unit: { enum: ["celsius", "fahrenheit"] } },
    required: ["city"],
};
const tool = {
    type: "function",
    function: { name: "get_weather", parameters: weather, strict: true },
};
const call = {
    id: "c1",
    type: "function",
    function: { name: "get_weather", arguments: '{"city":"Oslo"}' },
};
const chat = {
    model: "m",
    max_tokens: 24,
    temperature: 1,
    top_p: 0.9,
    top_k: 20,
    min_p: 0.01,
    seed: 7,
    n: 2,
    stop: ["\n\n", "end"],
    logprobs: true,
    top_logprobs: 3,
    logit_bias: { 5: -3, 17: 4 },
    presence_penalty: 0.5,
    frequency_penalty: 0.5,
    repetition_penalty: 1.1,
    depth: 3,
    stream: true,
    stream_options: { include_usage: true },
    tools: [tool],
    tool_choice: "auto",
    response_format: { type: "text" },
    mtplx_stats: true,
    enable_thinking: true,
    reasoning_effort: "low",
    messages: [
        { role: "system", content: "Be brief." },
        { role: "user", content: [{ type: "text", text: "What is the weather in Oslo?" }] },
        { role: "assistant", content: null, reasoning_content: "hm", tool_calls: [call] },
        { role: "tool", tool_call_id: "c1", content: "cold" },
        { role: "user", content: "And 2 + 2?" },
    ],
};
const schema = (s) => ({
    type: "json_schema",
    json_schema: { name: "s", strict: true, schema: s },
});
const bodies = {
    "/v1/chat/completions": [
        chat,
        { ...chat, tools: undefined, response_format: schema(weather) },
        { ...chat, stream: false, tool_choice: "required" },
        {
            ...chat,
            tools: undefined,
            response_format: { type: "regex", pattern: "[a-z]{3,9}(, [0-9]+)*" },
        },
        {
            ...chat,
            tools: undefined,
            response_format: { type: "grammar", grammar: 'root ::= "yes" | "no" [a-z]*' },
        },
    ],
    "/v1/completions": [
        { prompt: ["Once", "Twice"], max_tokens: 8, echo: true, logprobs: 2, stream: false },
        { prompt: [1, 2, 3], max_tokens: 8, stream: true },
    ],
    "/v1/embeddings": [{ input: ["a", "b"], encoding_format: "base64", dimensions: 16 }],
    "/v1/responses": [
        {
            input: [
                { role: "user", content: [{ type: "input_text", text: "Hi" }] },
                { type: "function_call_output", call_id: "x", output: "y" },
            ],
            instructions: "Be brief.",
            max_output_tokens: 16,
            stream: true,
            tools: [{ type: "function", name: "f", parameters: weather, strict: true }],
            text: { format: { type: "text" } },
            reasoning: { effort: "low" },
            previous_response_id: null,
        },
    ],
    "/v1/messages": [
        {
            model: "m",
            max_tokens: 16,
            stream: true,
            system: [{ type: "text", text: "Be brief." }],
            stop_sequences: ["x"],
            thinking: { type: "enabled", budget_tokens: 1024 },
            tools: [{ name: "f", input_schema: weather }],
            tool_choice: { type: "auto" },
            messages: [
                { role: "user", content: "Hi" },
                {
                    role: "assistant",
                    content: [
                        { type: "text", text: "Yes" },
                        { type: "tool_use", id: "t", name: "f", input: { city: "x" } },
                    ],
                },
                {
                    role: "user",
                    content: [
                        {
                            type: "tool_result",
                            tool_use_id: "t",
                            content: [{ type: "text", text: "ok" }],
                        },
                    ],
                },
            ],
        },
    ],
    "/v1/messages/count_tokens": [{ model: "m", messages: [{ role: "user", content: "Hi" }] }],
    "/tokenize": [{ content: "some text", with_pieces: true }],
    "/detokenize": [{ tokens: [1, 2, 3] }],
    "/v1/mtplx/settings": [{ depth: 3, temperature: 0.6 }],
};

// ---- Mutation -----------------------------------------------------------------------------------

const junk = () =>
    pick([
        null,
        true,
        false,
        0,
        -1,
        1,
        0.5,
        1e308,
        -1e308,
        2 ** 53,
        "",
        "x",
        "\u0000",
        "é世界🦊",
        "<|im_end|>",
        "</think>",
        "<tool_call>",
        [],
        {},
        [[]],
        [null],
        { type: "object" },
        { $ref: "#" },
        { type: "string", pattern: "(a*)*$" },
        "a".repeat(int(3000)),
        { anyOf: [{ $ref: "#" }] },
        { type: "array", minItems: 1e9 },
        { type: "string", maxLength: 1e9 },
        { minimum: 5, maximum: 1, type: "integer" },
        { enum: [] },
        Array.from({ length: int(50) }, () => int(9000)),
        "[".repeat(int(300)),
        "auto",
        "required",
        "json_object",
    ]);

function places(value, at = []) {
    const list = [at];
    if (value && typeof value === "object")
        for (const k of Object.keys(value)) list.push(...places(value[k], [...at, k]));
    return list;
}

function mutate(body) {
    let copy = structuredClone(body);
    for (let i = 1 + int(3); i > 0; i--) {
        const path = pick(places(copy));
        if (path.length === 0) {
            if (maybe(0.1)) copy = junk();
            continue;
        }
        let o = copy;
        for (const k of path.slice(0, -1)) o = o[k];
        const last = path.at(-1);
        if (!o || typeof o !== "object") continue;
        if (maybe(0.15)) delete o[last];
        else if (maybe(0.1) && Array.isArray(o)) o.push(structuredClone(o[last]));
        else
            o[last] = maybe(0.2)
                ? structuredClone(pick(Object.values(copy ?? {}).concat([1])))
                : junk();
        if (!copy || typeof copy !== "object") break;
    }
    return copy;
}

function bytes(text) {
    const raw = Buffer.from(text);
    if (raw.length > 0 && maybe(0.15)) raw[int(raw.length)] = int(256);
    return maybe(0.05) ? raw.subarray(0, int(raw.length + 1)) : raw;
}

// ---- Clients ------------------------------------------------------------------------------------

const seen = {};
let requests = 0,
    dropped = 0;

// Sends pieces and reads as told; resolves when the connection is over.
function talk(pieces, { after = Infinity, slow = false, deaf = false }) {
    return new Promise((done) => {
        let got = 0,
            head = "";
        const socket = connect(Number(url.port), url.hostname);
        const patience = setTimeout(() => socket.destroy(), 20_000);
        socket.on("connect", async () => {
            for (const piece of pieces) {
                socket.write(piece);
                if (pieces.length > 1) await new Promise((r) => setTimeout(r, int(5)));
            }
            if (deaf) (setTimeout(() => socket.destroy(), 300 + int(1500)), socket.pause());
        });
        socket.on("data", (data) => {
            got += data.length;
            if (head.length < 64) head += data.toString("latin1", 0, 64);
            if (got >= after) (dropped++, socket.destroy());
            else if (slow) (socket.pause(), setTimeout(() => socket.resume(), int(40)));
        });
        socket.on("error", () => {});
        socket.on("close", () => {
            clearTimeout(patience);
            const status = head.match(/^HTTP\/1\.1 (\d+)/)?.[1] ?? "none";
            seen[status] = (seen[status] ?? 0) + 1;
            requests++;
            if (status === "500")
                console.log("500:", Buffer.concat(pieces).toString("utf8").slice(0, 2000));
            done();
        });
    });
}

function request(path, body) {
    const head =
        `POST ${path} HTTP/1.1\r\nHost: ${url.host}\r\nAuthorization: Bearer ${key}\r\nConnection: close\r\n` +
        (maybe(0.1) ? "anthropic-version: 2023-06-01\r\n" : "") +
        `Content-Type: application/json\r\nContent-Length: ${body.length}\r\n\r\n`;
    return [Buffer.from(head), body];
}

const split = (pieces) => {
    const all = Buffer.concat(pieces),
        cut = int(all.length);
    return [all.subarray(0, cut), all.subarray(cut)];
};

function rawJunk() {
    const line = pick([
        "GET / HTTP/1.1",
        "POST /v1/chat/completions HTTP/1.0",
        "BREW /pot HTTP/1.1",
        "GET /v1/models/%00%ff HTTP/1.1",
        "GET /../../etc HTTP/1.1",
        "\u0000\u0001",
        "OPTIONS * HTTP/1.1",
        "POST /v1/messages HTTP/9.9",
    ]);
    const headers = [
        "Host: x",
        `Host: ${url.host}`,
        "Transfer-Encoding: chunked",
        "Content-Length: -1",
        "Content-Length: 99999999999999999999",
        "Expect: 100-continue",
        `X: ${"y".repeat(int(9000))}`,
        "Origin: http://evil.example",
        ": :",
        "\tfolded",
    ];
    const text = [
        line,
        ...Array.from({ length: int(6) }, () => pick(headers)),
        "",
        pick(["", "zz\r\n", "5\r\nhello\r\n0\r\n\r\n", "{}"]),
    ].join("\r\n");
    return [bytes(text)];
}

async function client(until) {
    while (Date.now() < until) {
        const how = {
            after: maybe(0.2) ? 1 + int(3000) : Infinity,
            slow: maybe(0.1),
            deaf: maybe(0.03),
        };
        if (maybe(0.1)) {
            await talk(rawJunk(), { ...how, deaf: true });
            continue;
        }
        const path = pick(Object.keys(bodies));
        const body = mutate(pick(bodies[path]));
        const pieces = request(path, bytes(JSON.stringify(body) ?? ""));
        await talk(maybe(0.2) ? split(pieces) : pieces, how);
    }
}

// An ordinary request has to be answered all the while.
async function ordinary(until) {
    let n = 0;
    while (Date.now() < until) {
        const r = await fetch(new URL("/v1/chat/completions", url), {
            method: "POST",
            headers: { authorization: `Bearer ${key}`, "content-type": "application/json" },
            body: JSON.stringify({
                messages: [{ role: "user", content: "What is the capital of Norway?" }],
                temperature: 0,
                seed: 1,
                depth: 3,
                top_p: 1,
                presence_penalty: 0,
                frequency_penalty: 0,
                repetition_penalty: 1,
                max_tokens: 20,
                enable_thinking: false,
            }),
            signal: AbortSignal.timeout(60_000),
        });
        const o = await r.json();
        const said = o.choices?.[0]?.message?.content;
        if (r.status !== 503 && !/Oslo/.test(said ?? ""))
            throw new Error(`the ordinary request got ${r.status} ${JSON.stringify(o)}`);
        n++;
        await new Promise((r) => setTimeout(r, 200));
    }
    return n;
}

const until = Date.now() + seconds * 1000;
const [n] = await Promise.all([
    ordinary(until),
    ...Array.from({ length: 12 }, () => client(until)),
]);
console.log(
    `seed ${seed}: ${requests} hostile requests, ${dropped} dropped in the middle, statuses ${JSON.stringify(seen)}; ${n} ordinary ones answered`,
);
process.exit(seen["500"] ? 1 : 0);
