// The server under test: `hadal serve` with the bundled model on a free port.
import assert from 'node:assert/strict';
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {readFileSync} from 'node:fs';
import {join} from 'node:path';
import {createInterface} from 'node:readline';
import {setTimeout} from 'node:timers/promises';

const source = process.env.HADAL_SOURCE;
export const model = 'tiny-v4-vision';
export const sign = join(source, 'examples/sign.png');
export const signBase64 = readFileSync(sign).toString('base64');
export const webFile = (name) => join(source, 'src/serving/web', name);

export class Server {
  static async start(...args) {
    const server = new Server();
    const all = ['serve', join(source, 'models', model), '--port', '0', '--threads', '1', '--max-num-seqs', '4',
      '--max-model-len', '2048', ...args];
    server.process = spawn(process.env.HADAL_BINARY, all, {stdio: ['ignore', 'pipe', 'pipe']});
    server.said = '';
    server.process.stderr.setEncoding('utf8').on('data', (text) => { server.said += text; });
    server.exit = once(server.process, 'exit');
    for await (const line of createInterface({input: server.process.stdout})) {
      assert.match(line, /^listening on http:\/\/127\.0\.0\.1:\d+$/);
      server.url = line.slice('listening on '.length);
      return server;
    }
    throw new Error(`the server did not start: ${server.said}`);
  }

  async stop() {
    this.process.kill('SIGTERM');
    const [code] = await this.exit;
    assert.equal(code, 0, this.said);
  }

  // The value of a metric, whose labels may be given as far as they matter: {finished_reason: 'abort'}.
  async metric(name, labels = {}, headers = {}) {
    const response = await fetch(`${this.url}/metrics`, {headers});
    assert.equal(response.status, 200);
    const wanted = Object.entries(labels).map(([label, value]) => `${label}="${value}"`);
    const lines = (await response.text()).split('\n');
    const line = lines.find((l) => l.startsWith(`vllm:${name}{`) && wanted.every((label) => l.includes(label)));
    assert.ok(line, `no metric ${name}`);
    return Number(line.slice(line.lastIndexOf(' ')));
  }

  // Waits until so many requests run; with none, no block of the cache is held either.
  async running(wanted, headers = {}) {
    let found;
    for (let tries = 0; tries < 3000; ++tries, await setTimeout(20)) {
      found = [await this.metric('num_requests_running', {}, headers),
        await this.metric('kv_cache_usage_perc', {}, headers)];
      if (found[0] === wanted && (found[1] === 0) === (wanted === 0)) return;
    }
    assert.fail(`expected ${wanted} requests to run, found ${found[0]} and ${found[1]} of the cache held`);
  }
}

// What is asked, and what the bundled model answers.
export const sum = {question: 'What is 478 + 365?', answer: '478 + 365 = 843'};
export const weather = {
  question: 'What is the weather in Seoul?',
  name: 'get_weather',
  description: 'Get the current weather in a city',
  parameters: {
    type: 'object',
    properties: {city: {type: 'string', description: 'City name'}},
    required: ['city'],
  },
  input: {city: 'Seoul'},
  result: '{"temperature": 5, "condition": "foggy"}',
  answer: 'It is foggy in Seoul with a temperature of 5 degrees.',
};
export const user = (content) => ({role: 'user', content});
// An answer that goes on until the limit: there is time to break it off.
export const endless = {ignore_eos: true, max_tokens: 1900};

export async function collect(stream) {
  const events = [];
  for await (const event of stream) events.push(event);
  return events;
}
