#!/usr/bin/env node
// A server with a small session bank and a small cold tier, for as long as you like: conversations
// grow, fork, are edited, asked again and abandoned, one request at a time.
//
// Every sample is a line of the log: resident memory, bytes of the bank, bytes of the directory.
// Verdict: resident memory never above (baseline + budget of the bank) + 5 %, the baseline being the
// most that warm-up requests without the bank reached; the directory never above its limit + 5 %;
// and a share of the answers, asked again past the bank, with the same text.
import { appendFileSync, existsSync, lstatSync, mkdtempSync, readdirSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { die, getJson, parseArgs, processBytes, request, sleep, startServer } from './lib.mjs';

const usage = `usage: bench/reuse/soak.mjs [OPTIONS]
  --seconds N        how long (default 3600)
  --mtplx PROGRAM    (default build/mtplx)
  --model PATH       (default: the built-in model)
  --bank SIZE        --session-bank-size, with K, M or G (default 64M)
  --ssd SIZE         --ssd-session-cache-max-size (default 256M; 0: no cold tier)
  --tokens N         conversations are abandoned at so many (default 3000)
  --pause MS         between requests (default 20)
  --every N          seconds between samples (default 10)
  --check N          one answer of so many is asked again past the bank (default 10)
  --restart N        seconds between restarts of the server (default 0: none)
  --log FILE         also there (default: standard output only)
  --seed N           (default 1)
  --mtplx-args ARGS  more arguments, split at blanks`;

const o = parseArgs({ seconds: 3600, mtplx: 'build/mtplx', model: '', bank: '64M', ssd: '256M',
                      tokens: 3000, pause: 20, every: 10, check: 10, restart: 0, log: '', seed: 1,
                      'mtplx-args': '' }, usage);

function toBytes(text) {
  const m = String(text).match(/^(\d+)([KMG]?)$/i);
  if (!m)
    die(`soak.mjs: '${text}' is not a size such as 64M`);
  return Number(m[1]) * 1024 ** ' KMG'.indexOf(m[2].toUpperCase() || ' ');
}

const bankLimit = toBytes(o.bank), ssdLimit = toBytes(o.ssd);
const MiB = (n) => (n / 1048576).toFixed(1);

function say(line) {
  console.log(line);
  if (o.log)
    appendFileSync(o.log, `${line}\n`);
}

let state = o.seed >>> 0;
function draw(below) {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return Math.floor((state / 4294967296) * below);
}

// ---- The server ---------------------------------------------------------------------------------

const dir = mkdtempSync(join(tmpdir(), 'mtplx-soak-'));
const ssdDir = join(dir, 'bank');
let server;

async function start() {
  const args = ['serve', '--quiet', '--session-bank-size', o.bank, '--seed', '1', '--depth', '3'];
  if (o.model)
    args.push('--model', o.model);
  args.push('--ssd-session-cache', ssdLimit ? 'on' : 'off');
  if (ssdLimit)
    args.push('--ssd-session-cache-dir', ssdDir, '--ssd-session-cache-max-size', o.ssd);
  args.push(...o['mtplx-args'].split(' ').filter(Boolean));
  server = await startServer(o.mtplx, args, join(dir, 'server.log'), { MTPLX_STATE_DIR: 'off' });
}

function treeBytes(path) {
  if (!existsSync(path))
    return 0;
  let sum = 0;
  for (const name of readdirSync(path)) {
    try {
      const at = join(path, name), st = lstatSync(at);
      sum += st.isDirectory() ? treeBytes(at) : st.size;
    } catch { /* removed meanwhile */ }
  }
  return sum;
}

// ---- Requests -----------------------------------------------------------------------------------

const count = { requests: 0, prompt: 0, cached: 0, checked: 0, different: 0, failed: 0, reasons: {} };

async function chat(messages, session, bypass) {
  const headers = { 'x-mtplx-session': session };
  if (bypass)
    headers['x-mtplx-cache-mode'] = 'bypass';
  const { status, text } = await request(server.port, 'POST', '/v1/chat/completions',
    { model: 'any', messages, temperature: 0, max_tokens: 48, mtplx_stats: true }, headers);
  if (status !== 200) {
    count.failed++;
    say(`status ${status}: ${text.slice(0, 300)}`);
    return null;
  }
  const reply = JSON.parse(text);
  return { content: reply.choices[0].message.content ?? '', all: JSON.stringify(reply.choices[0].message),
           prompt: reply.usage.prompt_tokens,
           cached: reply.usage.prompt_tokens_details?.cached_tokens ?? 0,
           reason: reply.mtplx_stats?.cache_miss_reason ?? 'none' };
}

const nouns = ['river', 'lamp', 'stone', 'engine', 'garden', 'letter', 'harbour', 'winter', 'clock',
               'bridge'];
const questions = ['Tell me a story about', 'Explain in two sentences what is special about',
                   'Write a Python function about', 'List five facts about', 'Write a fable about'];

function question() {
  const filler = Array.from({ length: draw(120) }, () => nouns[draw(nouns.length)]).join(' ');
  const end = `${questions[draw(questions.length)]} a ${nouns[draw(nouns.length)]}.`;
  return { role: 'user', content: draw(3) ? end : `${filler}. ${end}` };
}

const systems = ['', 'You are a helpful assistant. '.repeat(8),
                 'Answer briefly and plainly, as to a friend who is in a hurry. '.repeat(12)];
let born = 0;

function begin() {
  const system = systems[draw(systems.length)];
  return { id: `soak-${++born}`, tokens: 0,
           messages: [...(system ? [{ role: 'system', content: system }] : []), question()] };
}

const talks = Array.from({ length: 24 }, begin);

// Changes one conversation at random and returns it, ready to be sent.
function next() {
  const i = draw(talks.length), talk = talks[i], what = draw(100);
  if (talk.tokens > o.tokens || what < 8)
    return (talks[i] = begin());
  if (what < 20) {
    talks[draw(talks.length)] = { id: `soak-${++born}`, tokens: talk.tokens,
                                  messages: talk.messages.map((m) => ({ ...m })) };
  } else if (what < 35) {
    const users = talk.messages.flatMap((m, at) => (m.role === 'user' ? [at] : []));
    const at = users[draw(users.length)];
    talk.messages = [...talk.messages.slice(0, at), question()];
    return talk;
  } else if (what < 45 && talk.messages.at(-1).role === 'assistant') {
    talk.messages.pop();
    return talk;
  }
  if (talk.messages.at(-1).role === 'assistant')
    talk.messages.push(question());
  return talk;
}

async function turn() {
  const talk = next();
  const reply = await chat(talk.messages, talk.id, false);
  if (!reply)
    return;
  count.requests++;
  count.prompt += reply.prompt;
  count.cached += reply.cached;
  count.reasons[reply.reason] = (count.reasons[reply.reason] ?? 0) + 1;
  talk.tokens = reply.prompt;
  if (count.requests % o.check === 0) {
    const cold = await chat(talk.messages, talk.id, true);
    count.checked++;
    if (cold && cold.all !== reply.all) {
      count.different++;
      say(`different (${reply.cached} of ${reply.prompt} tokens restored):\n${reply.all}\n${cold.all}`);
    }
  }
  talk.messages.push({ role: 'assistant', content: reply.content });
}

// ---- Memory -------------------------------------------------------------------------------------

let baseline = 0, worst = 0, worstDisk = 0;

// As long as conversations get, past the bank.
async function warmUp() {
  const words = Array.from({ length: o.tokens }, (_, i) => nouns[(i * 7) % nouns.length]).join(' ');
  for (let i = 0; i < 6; i++) {
    const reply = await chat([{ role: 'user', content: words.slice(0, words.length * (i % 3 + 1) / 3) }],
                             'warm-up', true);
    if (!reply)
      die('soak.mjs: the warm-up failed');
    baseline = Math.max(baseline, processBytes(server.pid, 'VmRSS'));
  }
}

async function sample(second) {
  const rss = processBytes(server.pid, 'VmRSS'), disk = treeBytes(ssdDir);
  const sessions = await getJson(server.port, '/admin/sessions');
  const bank = sessions?.bank ?? sessions ?? {};
  worst = Math.max(worst, rss);
  worstDisk = Math.max(worstDisk, disk);
  say(`${String(second).padStart(5)} s  RSS ${MiB(rss)} MiB  bank ${MiB(bank.bytes ?? 0)} MiB  ` +
      `disk ${MiB(disk)} MiB  ${count.requests} requests, ` +
      `${(100 * count.cached / (count.prompt || 1)).toFixed(1)} % of prompt tokens restored`);
}

await start();
await warmUp();
say(`pid ${server.pid}, port ${server.port}, ${dir}; baseline ${MiB(baseline)} MiB, bank ${o.bank}, ` +
    `disk ${o.ssd}, ${o.seconds} s`);
const begun = Date.now(), limit = (baseline + bankLimit) * 1.05, diskLimit = ssdLimit * 1.05;
let sampled = -Infinity, restarted = 0;
const stopEarly = { now: false };
process.on('SIGINT', () => { stopEarly.now = true; });
process.on('SIGTERM', () => { stopEarly.now = true; });
for (let t = 0; t < o.seconds && !stopEarly.now && !server.ended(); ) {
  await turn();
  t = (Date.now() - begun) / 1000;
  if (t - sampled >= o.every) {
    await sample(Math.floor(t));
    sampled = t;
  }
  if (o.restart && t - restarted >= o.restart) {
    await server.stop();
    await start();
    restarted = t;
  }
  await sleep(o.pause);
}
const alive = !server.ended();
if (alive) {
  await sample(Math.floor((Date.now() - begun) / 1000));
  await server.stop();
}
say(`${count.requests} requests, ${count.failed} failed, ${count.checked} asked again past the bank, ` +
    `${count.different} different; reasons ${JSON.stringify(count.reasons)}`);
const good = alive && worst <= limit && (!ssdLimit || worstDisk <= diskLimit) && !count.different &&
             !count.failed;
say(`RSS at most ${MiB(worst)} MiB of ${MiB(limit)}; directory at most ${MiB(worstDisk)} MiB of ` +
    `${MiB(diskLimit)}: ${good ? 'passed' : 'FAILED'}${alive ? '' : ' (the server ended)'}`);
rmSync(dir, { recursive: true, force: true });
process.exit(good ? 0 : 1);
