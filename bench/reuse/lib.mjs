// What the programs of this folder share: servers as child processes, streamed requests, numbers.
// Plain Node 18 or later, no packages.
import http from 'node:http';
import net from 'node:net';
import { spawn } from 'node:child_process';
import { createWriteStream, readFileSync } from 'node:fs';

export const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export function die(what) {
  console.error(what);
  process.exit(1);
}

// {name: value} of "--name value" arguments; `known` maps names to defaults.
export function parseArgs(known, usage) {
  const found = { ...known };
  const argv = process.argv.slice(2);
  for (let i = 0; i < argv.length; i++) {
    const name = argv[i].replace(/^--/, '');
    if (name === 'help') {
      console.log(usage);
      process.exit(0);
    }
    if (!argv[i].startsWith('--') || !(name in known) || i + 1 === argv.length) {
      console.error(usage);
      process.exit(2);
    }
    found[name] = typeof known[name] === 'number' ? Number(argv[++i]) : argv[++i];
  }
  return found;
}

export function median(values) {
  const v = [...values].sort((a, b) => a - b);
  const half = v.length >> 1;
  return v.length % 2 ? v[half] : (v[half - 1] + v[half]) / 2;
}

function freePort() {
  return new Promise((resolve, reject) => {
    const s = net.createServer();
    s.on('error', reject);
    s.listen(0, '127.0.0.1', () => {
      const { port } = s.address();
      s.close(() => resolve(port));
    });
  });
}

// One request. `onChunk(text)` gets the reply as it comes; returns {status, text}.
export function request(port, method, path, body, headers = {}, onChunk = () => {}) {
  return new Promise((resolve, reject) => {
    const data = body === undefined ? '' : JSON.stringify(body);
    const r = http.request(
      { host: '127.0.0.1', port, method, path, agent: false,
        headers: { 'content-type': 'application/json', 'content-length': Buffer.byteLength(data),
                   ...headers } },
      (reply) => {
        let text = '';
        reply.setEncoding('utf8');
        reply.on('data', (chunk) => {
          text += chunk;
          onChunk(chunk, () => r.destroy());
        });
        reply.on('end', () => resolve({ status: reply.statusCode, text }));
        reply.on('error', reject);
      });
    r.setTimeout(900000, () => r.destroy(new Error(`${path}: no answer within 15 minutes`)));
    r.on('error', reject);
    r.end(data);
  });
}

export async function getJson(port, path) {
  const { status, text } = await request(port, 'GET', path, undefined,
                                         { accept: 'application/json' });
  return status === 200 ? JSON.parse(text) : null;
}

// A streamed POST: its events as objects, and milliseconds to the first one for which `counts`.
export async function stream(port, path, body, headers, counts) {
  const events = [];
  let rest = '', first = 0;
  const start = performance.now();
  const { status, text } = await request(port, 'POST', path, body, headers, (chunk) => {
    rest += chunk;
    for (let end; (end = rest.indexOf('\n')) >= 0; rest = rest.slice(end + 1)) {
      const line = rest.slice(0, end).trim();
      if (!line.startsWith('data:') || line === 'data: [DONE]')
        continue;
      const event = JSON.parse(line.slice(5));
      if (!first && counts(event))
        first = performance.now() - start;
      events.push(event);
    }
  });
  if (status !== 200)
    throw new Error(`${path}: status ${status}: ${text.slice(0, 300)}`);
  return { events, ms: first, total: performance.now() - start };
}

// Starts a program that listens on --port and waits until /health answers.
export async function startServer(program, args, logFile, env = {}) {
  const port = await freePort();
  const log = createWriteStream(logFile, { flags: 'a' });
  const child = spawn(program, [...args, '--port', String(port)],
                      { stdio: ['ignore', 'pipe', 'pipe'], env: { ...process.env, ...env } });
  let ended = false;
  child.on('error', (e) => die(`${program}: ${e.message}`));
  child.on('exit', () => { ended = true; });
  child.stdout.pipe(log);
  child.stderr.pipe(log);
  for (let i = 0; i < 1200; i++) {
    if (ended)
      die(`${program} ended; see ${logFile}`);
    try {
      const { status } = await request(port, 'GET', '/health');
      if (status === 200)
        break;
    } catch { /* not listening yet */ }
    await sleep(100);
  }
  const stop = async () => {
    child.kill('SIGTERM');
    for (let i = 0; i < 600 && !ended; i++)
      await sleep(50);
    if (!ended)
      child.kill('SIGKILL');
  };
  return { port, pid: child.pid, stop, ended: () => ended };
}

// A field of /proc/PID/status in bytes, such as VmRSS.
export function processBytes(pid, field) {
  const m = readFileSync(`/proc/${pid}/status`, 'utf8').match(new RegExp(`^${field}:\\s*(\\d+)`, 'm'));
  return m ? Number(m[1]) * 1024 : 0;
}
