#!/usr/bin/env node
// Prefix reuse, the same requests to mtplx and to llama.cpp's server, over HTTP.
//
// Every round starts both servers afresh on the same GGUF file and sends, in this order: a prompt of
// 600 token ids; that with its answer and 20 more (the next turn); the 600 again; an edit at 590; an
// edit at 300; then, each time after a restart, the last prompt with its answer and 20 more, and
// the same without the answer, as a client sends it that drops what a model thought. mtplx keeps
// its states on disk by itself; llama.cpp saves its slot to a file before it ends and restores it.
//
// The file must be a synthetic one whose text is the chain t, t + 1, t + 2, ... (bench/synth): then
// both engines' answers are known, and checked.
import { mkdtempSync, rmSync, existsSync } from 'node:fs';
import { tmpdir, loadavg, cpus } from 'node:os';
import { join } from 'node:path';
import { execFileSync } from 'node:child_process';
import { die, median, parseArgs, startServer, stream, request } from './lib.mjs';

const usage = `usage: bench/reuse/run.mjs --model FILE.gguf [OPTIONS]
  --mtplx PROGRAM       (default build/mtplx; "": leave it out)
  --llama PROGRAM       llama-server, built by you (default: left out)
  --threads N           of both (default: processors)
  --rounds N            times are medians of so many (default 3)
  --mtplx-args ARGS     more arguments, split at blanks
  --llama-args ARGS     the same for llama-server, such as "--ctx-checkpoints 64"
  --json FILE           also write every figure there`;

const o = parseArgs({ model: '', mtplx: 'build/mtplx', llama: '', threads: cpus().length, rounds: 3,
                      'mtplx-args': '', 'llama-args': '', json: '' }, usage);
if (!existsSync(o.model))
  die(`run.mjs: cannot read the model '${o.model}' (see --help)`);

const range = (from, n) => Array.from({ length: n }, (_, i) => from + i);
const words = (text) => text.split(' ').filter(Boolean);
const ANSWER = 8;

// ---- Engines ------------------------------------------------------------------------------------

// ask(ids) -> {processed, reused, ms, text}; restart() keeps what the engine can keep.
const engines = {
  mtplx: {
    async start(dir) {
      this.dir = dir;
      this.server = await startServer(o.mtplx, [
        'serve', '--model', o.model, '--threads', String(o.threads), '--quiet',
        '--ssd-session-cache', 'on', '--ssd-session-cache-dir', join(dir, 'bank'),
        ...words(o['mtplx-args'])], join(dir, 'mtplx.log'), { MTPLX_STATE_DIR: 'off' });
    },
    async ask(ids) {
      const body = { prompt: ids, max_tokens: ANSWER, temperature: 0, stream: true,
                     stream_options: { include_usage: true }, mtplx_stats: true };
      const { events, ms } = await stream(this.server.port, '/v1/completions', body, {},
                                          (e) => e.choices?.[0]?.text);
      const usage = events.findLast((e) => e.usage)?.usage;
      const stats = events.findLast((e) => e.mtplx_stats)?.mtplx_stats;
      const reused = usage.prompt_tokens_details.cached_tokens;
      return { reused, processed: usage.prompt_tokens - reused, ms,
               reason: stats?.cache_miss_reason ?? '',
               text: events.map((e) => e.choices?.[0]?.text ?? '').join('') };
    },
    async restart() {
      await this.server.stop();
      await this.start(this.dir);
    },
  },
  'llama.cpp': {
    async start(dir) {
      this.dir = dir;
      this.server = await startServer(o.llama, [
        '-m', o.model, '-c', '8192', '-np', '1', '-t', String(o.threads), '--host', '127.0.0.1',
        '--slot-save-path', dir, ...words(o['llama-args'])], join(dir, 'llama.log'));
    },
    async ask(ids) {
      const body = { prompt: ids, n_predict: ANSWER, temperature: 0, cache_prompt: true,
                     ignore_eos: true, id_slot: 0, stream: true, return_tokens: true };
      const { events, ms } = await stream(this.server.port, '/completion', body, {},
                                          (e) => e.tokens?.length);
      const { timings } = events.findLast((e) => e.timings);
      const got = events.flatMap((e) => e.tokens ?? []).slice(0, ANSWER);
      const want = range(ids.at(-1) + 1, ANSWER);
      if (String(got) !== String(want))
        die(`run.mjs: llama.cpp did not go on with the chain: ${got} after ${ids.at(-1)}`);
      return { reused: timings.cache_n ?? ids.length - timings.prompt_n,
               processed: timings.prompt_n, ms, text: events.map((e) => e.content ?? '').join('') };
    },
    async slot(action) {
      const { status, text } = await request(this.server.port, 'POST', `/slots/0?action=${action}`,
                                             { filename: 'slot' });
      if (status !== 200)
        die(`run.mjs: slot ${action}: ${text}`);
    },
    async restart() {
      if (!this.saved)
        await this.slot('save');
      this.saved = true;
      await this.server.stop();
      await this.start(this.dir);
      await this.slot('restore');
    },
  },
};

// ---- Experiments --------------------------------------------------------------------------------

const base = range(1000, 600), turn = range(3000, 20), edited = range(5000, 300);
const answer = (ids) => range(ids.at(-1) + 1, ANSWER);
const last = [...base.slice(0, 300), ...edited];
const experiments = [
  ['cold, 600 tokens', base],
  ['next turn: answer and 20 more', [...base, ...answer(base), ...turn]],
  ['the first 600 again', base],
  ['edit at 590 of 610', [...base.slice(0, 590), ...edited.slice(0, 20)]],
  ['edit at 300 of 600', last],
  ['restart, then answer and 20 more', [...last, ...answer(last), ...turn], true],
  ['restart, then 20 more without the answer', [...last, ...turn], true],
];

async function play(engine, results) {
  const dir = mkdtempSync(join(tmpdir(), 'mtplx-reuse-'));
  const texts = [];
  engine.saved = false;
  await engine.start(dir);
  for (let i = 0; i < experiments.length; i++) {
    const [, ids, restart] = experiments[i];
    if (restart)
      await engine.restart();
    const r = await engine.ask(ids);
    (results[i] ??= []).push(r);
    texts.push(r.text);
  }
  await engine.server.stop();
  rmSync(dir, { recursive: true });
  return texts;
}

const names = Object.keys(engines).filter((n) => (n === 'mtplx' ? o.mtplx : o.llama));
const results = Object.fromEntries(names.map((n) => [n, []]));
const load = loadavg()[0].toFixed(1);
for (let round = 0; round < o.rounds; round++) {
  const texts = [];
  for (const name of names)
    texts.push(await play(engines[name], results[name]));
  experiments.forEach(([what], i) => {
    if (texts.some((t) => t[i] !== texts[0][i]))
      die(`run.mjs: ${what}: the engines' answers differ: ${texts.map((t) => JSON.stringify(t[i]))}`);
  });
}

// ---- Report -------------------------------------------------------------------------------------

const version = (program, args) => {
  try {
    return execFileSync(program, args, { encoding: 'utf8', stdio: ['ignore', 'pipe', 'pipe'] });
  } catch { return ''; }
};
const head = names.flatMap((n) => [`${n}: processed`, 'reused', 'first token, ms']);
console.log(`${o.model}, ${o.threads} threads, ${o.rounds} rounds, load ${load} before` +
            (o.mtplx ? `; ${version(o.mtplx, ['--version']).trim()}` : ''));
console.log(`\n| | ${head.join(' | ')} |\n|${'---|'.repeat(head.length + 1)}`);
experiments.forEach(([what], i) => {
  const cells = names.flatMap((n) => {
    const r = results[n][i];
    return [median(r.map((x) => x.processed)), median(r.map((x) => x.reused)),
            median(r.map((x) => x.ms)).toFixed(1)];
  });
  console.log(`| ${what} | ${cells.join(' | ')} |`);
});
if (o.json) {
  const { writeFileSync } = await import('node:fs');
  writeFileSync(o.json, JSON.stringify({ experiments: experiments.map(([w]) => w), results }, null, 1));
}
