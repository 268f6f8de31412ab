// The openai package against /v1/responses.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import OpenAI from 'openai';
import {collect, endless, model, Server, signBase64, sum, user, weather} from './server.js';

const thoughtful = {model, temperature: 0};
const silent = {...thoughtful, reasoning: {effort: 'none'}};
const tool = {
  type: 'function',
  name: weather.name,
  description: weather.description,
  parameters: weather.parameters,
  strict: false,
};

let server, client;
before(async () => {
  server = await Server.start();
  client = new OpenAI({baseURL: `${server.url}/v1`, apiKey: 'none is needed', maxRetries: 0});
});
after(() => server?.stop());

// An answer without what is another in each: ids and the time.
function lasting(response) {
  return JSON.parse(JSON.stringify(response),
    (key, value) => (['id', 'call_id', 'created_at', 'completed_at'].includes(key) ? undefined : value));
}

// The types of a stream's events, equal ones behind each other once.
const course = (events) => events.map((e) => e.type).filter((type, i, all) => type !== all[i - 1]);
const part = (deltas, done) => [
  'response.output_item.added', 'response.content_part.added', deltas, done, 'response.content_part.done',
  'response.output_item.done',
];
const begin = ['response.created', 'response.in_progress'];
const reasoning = part('response.reasoning_text.delta', 'response.reasoning_text.done');
const text = part('response.output_text.delta', 'response.output_text.done');
const call = ['response.output_item.added', 'response.function_call_arguments.delta',
  'response.function_call_arguments.done', 'response.output_item.done'];
const joined = (events, type) => events.filter((e) => e.type === type).map((e) => e.delta).join('');

test('responses: a whole answer', async () => {
  const response = await client.responses.create({...silent, input: sum.question});
  assert.equal(response.object, 'response');
  assert.equal(response.status, 'completed');
  assert.equal(response.output_text, sum.answer);
  assert.deepEqual(response.output.map((item) => item.type), ['message']);
  const {input_tokens: input, output_tokens: output, total_tokens: total} = response.usage;
  assert.deepEqual([input, output, total], [16, 14, 30]);
});

test('responses: the events of a stream, in order, are the whole answer', async () => {
  const body = {...thoughtful, input: sum.question};
  const whole = await client.responses.create(body);
  const events = await collect(await client.responses.create({...body, stream: true}));
  assert.deepEqual(events.map((e) => e.sequence_number), events.map((_, i) => i));
  assert.deepEqual(course(events), [...begin, ...reasoning, ...text, 'response.completed']);
  assert.equal(joined(events, 'response.output_text.delta'), sum.answer);
  assert.equal(joined(events, 'response.reasoning_text.delta'), whole.output[0].content[0].text);
  const {output_text: outputText, ...rest} = lasting(whole);
  assert.equal(outputText, sum.answer);
  assert.deepEqual(lasting(events.at(-1).response), rest);
  const done = events.filter((e) => e.type === 'response.output_item.done').map((e) => e.item);
  assert.deepEqual(events.at(-1).response.output, done);
});

test('responses: the stream helper', async () => {
  const stream = client.responses.stream({...thoughtful, input: sum.question});
  let written = '';
  stream.on('response.output_text.delta', (event) => { written += event.delta; });
  const events = await collect(stream);
  const final = await stream.finalResponse();
  assert.deepEqual(course(events), [...begin, ...reasoning, ...text, 'response.completed']);
  assert.equal(written, sum.answer);
  assert.equal(final.output_text, sum.answer);
});

test('responses: a tool is called and its result used', async () => {
  const body = {...thoughtful, tools: [tool]};
  const first = await client.responses.create({...body, input: weather.question});
  assert.deepEqual(first.output.map((item) => item.type), ['reasoning', 'function_call']);
  const asked = first.output[1];
  assert.equal(asked.name, weather.name);
  assert.deepEqual(JSON.parse(asked.arguments), weather.input);
  assert.equal(first.output_text, '');

  const stream = client.responses.stream({...body, input: weather.question});
  const events = await collect(stream);
  assert.deepEqual(course(events), [...begin, ...reasoning, ...call, 'response.completed']);
  assert.equal(joined(events, 'response.function_call_arguments.delta'), asked.arguments);

  const result = {type: 'function_call_output', call_id: asked.call_id, output: weather.result};
  const second = await client.responses.create({...body, input: [user(weather.question), ...first.output, result]});
  assert.equal(second.output_text, weather.answer);
});

test('responses: an image', async () => {
  const content = [
    {type: 'input_image', image_url: `data:image/png;base64,${signBase64}`, detail: 'auto'},
    {type: 'input_text', text: 'OCR this image.'},
  ];
  const response = await client.responses.create({...silent, input: [user(content)]});
  assert.equal(response.output_text, 'TIGER 42');
});

test('responses: an answer in the form of a JSON schema', async () => {
  const schema = {
    type: 'object',
    properties: {sum: {type: 'integer'}},
    required: ['sum'],
    additionalProperties: false,
  };
  const format = {type: 'json_schema', name: 'sum', strict: true, schema};
  const response = await client.responses.parse({...thoughtful, input: sum.question, text: {format}});
  assert.deepEqual(response.output_parsed, {sum: 843});
});

test('responses: an answer that is cut off is incomplete', async () => {
  const body = {...silent, input: sum.question, max_output_tokens: 3};
  const whole = await client.responses.create(body);
  assert.equal(whole.status, 'incomplete');
  assert.deepEqual(whole.incomplete_details, {reason: 'max_output_tokens'});
  const events = await collect(await client.responses.create({...body, stream: true}));
  assert.equal(events.at(-1).type, 'response.incomplete');
  assert.equal(joined(events, 'response.output_text.delta'), whole.output_text);
});

test('responses: errors', async () => {
  await assert.rejects(() => client.responses.create({...silent, input: sum.question, temperature: 9}),
    (e) => e instanceof OpenAI.BadRequestError && e.param === 'temperature');
  await assert.rejects(() => client.responses.create({...silent, input: sum.question, model: 'nobody'}),
    OpenAI.NotFoundError);
  await assert.rejects(() => client.responses.create({...silent, input: 'Go on.', previous_response_id: 'resp_0'}),
    (e) => e instanceof OpenAI.NotFoundError && e.param === 'previous_response_id');
});

test('responses: a stream that is aborted ends its request', async () => {
  const controller = new AbortController();
  const {max_tokens: limit, ...rest} = endless;
  const stream = await client.responses.create(
    {...silent, ...rest, max_output_tokens: limit, input: sum.question, stream: true}, {signal: controller.signal});
  for await (const event of stream) {
    if (event.type === 'response.output_text.delta') controller.abort();
  }
  await server.running(0);
  assert.equal(await server.metric('request_success_total', {finished_reason: 'abort'}), 1);
});
