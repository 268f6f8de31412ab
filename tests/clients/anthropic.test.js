// The @anthropic-ai/sdk package against /v1/messages.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import Anthropic from '@anthropic-ai/sdk';
import {collect, endless, model, Server, signBase64, sum, user, weather} from './server.js';

const apiKey = 'sesame';
const thoughtful = {model, max_tokens: 500, temperature: 0};
const silent = {...thoughtful, thinking: {type: 'disabled'}};
const tool = {name: weather.name, description: weather.description, input_schema: weather.parameters};

let server, client;
before(async () => {
  server = await Server.start('--api-key', apiKey);
  client = new Anthropic({baseURL: server.url, apiKey, authToken: null, maxRetries: 0});
});
after(() => server?.stop());

// A message without what is another in each: ids; and what only the stream helper adds.
function lasting(message) {
  const {parsed_output: _, ...rest} = message;
  return JSON.parse(JSON.stringify(rest), (key, value) => (key === 'id' ? undefined : value));
}

// The types of a stream's events, equal ones behind each other once.
const course = (events) => events.map((e) => e.type).filter((type, i, all) => type !== all[i - 1]);
const block = ['content_block_start', 'content_block_delta', 'content_block_stop'];
const end = ['message_delta', 'message_stop'];

test('messages.create', async () => {
  const message = await client.messages.create({...silent, messages: [user(sum.question)]});
  assert.deepEqual(lasting(message), {
    type: 'message',
    role: 'assistant',
    model,
    content: [{type: 'text', text: sum.answer}],
    stop_reason: 'end_turn',
    stop_sequence: null,
    usage: {input_tokens: 16, cache_creation_input_tokens: 0, cache_read_input_tokens: 0, output_tokens: 14},
  });
});

test('messages.stream: text and thinking are those of the whole message', async () => {
  const body = {...thoughtful, max_tokens: 1500, thinking: {type: 'enabled', budget_tokens: 1024}};
  const whole = await client.messages.create({...body, messages: [user(sum.question)]});
  assert.deepEqual(whole.content.map((c) => c.type), ['thinking', 'text']);
  assert.match(whole.content[0].thinking, /^Ones: 8 \+ 5 = 13, .* So 478 \+ 365 = 843\.$/);
  assert.equal(whole.content[1].text, sum.answer);

  const stream = client.messages.stream({...body, messages: [user(sum.question)]});
  let text = '', thinking = '', signature = '';
  stream.on('text', (delta) => { text += delta; });
  stream.on('thinking', (delta) => { thinking += delta; });
  stream.on('signature', (given) => { signature = given; });
  const events = await collect(stream);
  assert.deepEqual(course(events), ['message_start', ...block, ...block, ...end]);
  assert.deepEqual(whole.content, [{type: 'thinking', thinking, signature}, {type: 'text', text}]);
  assert.deepEqual(lasting(await stream.finalMessage()), lasting(whole));
  assert.equal(await stream.finalText(), sum.answer);
});

test('messages.create with stream: true', async () => {
  const events = await collect(
    await client.messages.create({...silent, messages: [user(sum.question)], stream: true}));
  assert.deepEqual(course(events), ['message_start', ...block, ...end]);
  assert.equal(events.map((e) => e.delta?.text ?? '').join(''), sum.answer);
});

test('thinking that goes back with the next turn', async () => {
  const messages = [user(sum.question)];
  const first = await client.messages.create({...thoughtful, messages});
  messages.push({role: 'assistant', content: first.content}, user('What is 4 + 3?'));
  const second = await client.messages.create({...thoughtful, messages});
  assert.equal(second.content.at(-1).text, '4 + 3 = 7');
});

test('a tool is called and its result used', async () => {
  const body = {...silent, tools: [tool], tool_choice: {type: 'auto'}};
  const messages = [user(weather.question)];
  const whole = await client.messages.create({...body, messages});
  const {id, ...call} = whole.content[0];
  assert.match(id, /^toolu_[0-9a-f]+$/);
  assert.deepEqual(call, {type: 'tool_use', name: weather.name, input: weather.input});
  assert.equal(whole.content.length, 1);
  assert.equal(whole.stop_reason, 'tool_use');

  const stream = client.messages.stream({...body, messages});
  const events = await collect(stream);
  assert.deepEqual(course(events), ['message_start', ...block, ...end]);
  const final = await stream.finalMessage();
  assert.deepEqual(lasting(final.content), lasting(whole.content));
  assert.equal(final.stop_reason, 'tool_use');

  const result = {type: 'tool_result', tool_use_id: id, content: weather.result};
  const second = await client.messages.create(
    {...body, messages: [...messages, {role: 'assistant', content: whole.content}, user([result])]});
  assert.deepEqual(second.content, [{type: 'text', text: weather.answer}]);
  assert.equal(second.stop_reason, 'end_turn');
});

test('the tool runner', async () => {
  const asked = [];
  const run = (input) => {
    asked.push(input);
    return weather.result;
  };
  const runner = client.beta.messages.toolRunner(
    {...silent, messages: [user(weather.question)], tools: [{...tool, run, parse: (input) => input}]});
  const message = await runner;
  assert.deepEqual(message.content, [{type: 'text', text: weather.answer}]);
  assert.deepEqual(asked, [weather.input]);
});

test('an image', async () => {
  const source = {type: 'base64', media_type: 'image/png', data: signBase64};
  const content = [{type: 'image', source}, {type: 'text', text: 'OCR this image.'}];
  const message = await client.messages.create({...silent, messages: [user(content)]});
  assert.deepEqual(message.content, [{type: 'text', text: 'TIGER 42'}]);
});

test('stop sequences and max_tokens', async () => {
  const body = {...silent, messages: [user(sum.question)]};
  const stopped = await client.messages.create({...body, stop_sequences: [' =']});
  assert.deepEqual([stopped.content[0].text, stopped.stop_reason, stopped.stop_sequence],
    ['478 + 365', 'stop_sequence', ' =']);
  const cut = await client.messages.create({...body, max_tokens: 1});
  assert.deepEqual([cut.usage.output_tokens, cut.stop_reason], [1, 'max_tokens']);
});

test('countTokens counts what the message then has', async () => {
  const body = {model, messages: [user(weather.question)], tools: [tool], system: 'You are a helpful assistant.'};
  const {input_tokens: counted} = await client.messages.countTokens(body);
  const {usage} = await client.messages.create({...body, max_tokens: 1});
  assert.equal(counted, usage.input_tokens + usage.cache_read_input_tokens);
});

test('a key as a bearer token', async () => {
  const bearer = new Anthropic({baseURL: server.url, apiKey: null, authToken: apiKey, maxRetries: 0});
  const message = await bearer.messages.create({...silent, messages: [user(sum.question)]});
  assert.equal(message.content[0].text, sum.answer);
});

test('errors are the classes of the package', async () => {
  const body = {...silent, messages: [user(sum.question)]};
  const stranger = new Anthropic({baseURL: server.url, apiKey: 'wrong', authToken: null, maxRetries: 0});
  const error = (type, name) => (e) => e instanceof type && e.error.type === 'error' && e.error.error.type === name;
  for (const ask of [(b) => stranger.messages.create(b), (b) => stranger.messages.stream(b).finalMessage()]) {
    await assert.rejects(() => ask(body), error(Anthropic.AuthenticationError, 'authentication_error'));
  }
  for (const ask of [(b) => client.messages.create(b), (b) => client.messages.stream(b).finalMessage()]) {
    await assert.rejects(() => ask({...body, temperature: 9}), (e) =>
      error(Anthropic.BadRequestError, 'invalid_request_error')(e) &&
      e.error.error.message === 'temperature: expected a number from 0 to 2, found 9');
    await assert.rejects(() => ask({...body, model: 'nobody'}), error(Anthropic.NotFoundError, 'not_found_error'));
    await assert.rejects(() => ask({...body, messages: [user('x '.repeat(5000))]}),
      error(Anthropic.BadRequestError, 'invalid_request_error'));
  }
});

test('a stream that is aborted ends its request', async () => {
  const headers = {Authorization: `Bearer ${apiKey}`};
  const stream = client.messages.stream({...silent, ...endless, messages: [user(sum.question)]});
  const aborted = assert.rejects(stream.done(), Anthropic.APIUserAbortError);
  stream.once('text', () => stream.abort());
  await aborted;
  await server.running(0, headers);
  assert.equal(await server.metric('request_success_total', {finished_reason: 'abort'}, headers), 1);
});
