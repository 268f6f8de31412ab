// The openai package against /v1/models, /v1/chat/completions and /v1/completions.
import assert from 'node:assert/strict';
import {after, before, test} from 'node:test';
import OpenAI from 'openai';
import {collect, endless, model, Server, signBase64, sum, user, weather} from './server.js';

const apiKey = 'sesame';
const chat = {model, temperature: 0};
const silent = {...chat, reasoning_effort: 'none'};
const joined = (texts) => texts.filter((text) => text !== undefined && text !== null).join('');
const tool = {
  type: 'function',
  function: {name: weather.name, description: weather.description, parameters: weather.parameters},
};
const schema = {
  type: 'object',
  properties: {sum: {type: 'integer'}},
  required: ['sum'],
  additionalProperties: false,
};
const sumFormat = {type: 'json_schema', json_schema: {name: 'sum', strict: true, schema}};

let server, client;
before(async () => {
  server = await Server.start('--api-key', apiKey);
  client = new OpenAI({baseURL: `${server.url}/v1`, apiKey, maxRetries: 0});
});
after(() => server?.stop());

test('models.list and models.retrieve', async () => {
  const models = await collect(client.models.list());
  assert.deepEqual(models.map(({id, object}) => ({id, object})), [{id: model, object: 'model'}]);
  assert.deepEqual(await client.models.retrieve(model), models[0]);
});

test('chat: a whole answer', async () => {
  const answer = await client.chat.completions.create({...silent, messages: [user(sum.question)]});
  assert.equal(answer.object, 'chat.completion');
  assert.equal(answer.model, model);
  assert.deepEqual(answer.choices, [{
    index: 0,
    message: {role: 'assistant', content: sum.answer},
    logprobs: null,
    finish_reason: 'stop',
    stop_reason: null,
  }]);
  const {prompt_tokens: prompt, completion_tokens: completion, total_tokens: total} = answer.usage;
  assert.deepEqual([prompt, completion, total], [16, 14, 30]);
});

test('chat: the reasoning, and an answer without', async () => {
  const messages = [user(sum.question)];
  const {message} = (await client.chat.completions.create({...chat, messages})).choices[0];
  assert.equal(message.content, sum.answer);
  assert.match(message.reasoning_content, /^Ones: 8 \+ 5 = 13, .* So 478 \+ 365 = 843\.$/);
  for (const off of [{reasoning_effort: 'none'}, {thinking: {type: 'disabled'}},
    {chat_template_kwargs: {thinking: false}}]) {
    const answer = await client.chat.completions.create({...chat, messages, ...off});
    assert.deepEqual(answer.choices[0].message, {role: 'assistant', content: sum.answer});
    assert.equal(answer.usage.completion_tokens_details.reasoning_tokens, 0);
  }
});

test('chat: the deltas of a stream are the whole answer', async () => {
  const body = {...chat, messages: [user(sum.question)], logprobs: true};
  const whole = await client.chat.completions.create(body);
  const chunks = await collect(
    await client.chat.completions.create({...body, stream: true, stream_options: {include_usage: true}}));
  const choices = chunks.flatMap((chunk) => chunk.choices);
  assert.equal(choices[0].delta.role, 'assistant');
  assert.equal(joined(choices.map((c) => c.delta.content)), whole.choices[0].message.content);
  assert.equal(joined(choices.map((c) => c.delta.reasoning_content)), whole.choices[0].message.reasoning_content);
  assert.deepEqual(choices.flatMap((c) => c.logprobs?.content ?? []), whole.choices[0].logprobs.content);
  assert.deepEqual(choices.map((c) => c.finish_reason), [...Array(choices.length - 1).fill(null), 'stop']);
  assert.equal(new Set(chunks.map((chunk) => chunk.id)).size, 1);
  assert.deepEqual(chunks.slice(0, -1).map((chunk) => chunk.usage), Array(chunks.length - 1).fill(null));
  assert.deepEqual(chunks.at(-1).choices, []);
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
});

test('chat: a stream without usage has none', async () => {
  const chunks = await collect(
    await client.chat.completions.create({...silent, messages: [user(sum.question)], stream: true}));
  assert.deepEqual(chunks.filter((chunk) => 'usage' in chunk), []);
  assert.equal(joined(chunks.map((chunk) => chunk.choices[0].delta.content)), sum.answer);
});

test('chat: the stream helper', async () => {
  const stream = client.chat.completions.stream({...silent, messages: [user(sum.question)]});
  let content = '';
  stream.on('content', (delta) => { content += delta; });
  const final = await stream.finalChatCompletion();
  assert.equal(content, sum.answer);
  assert.equal(final.choices[0].message.content, sum.answer);
  assert.equal(final.choices[0].finish_reason, 'stop');
});

test('chat: several answers, stop strings and limits', async () => {
  const body = {...silent, messages: [user(sum.question)]};
  const several = await client.chat.completions.create({...body, n: 3});
  assert.deepEqual(several.choices.map((c) => [c.index, c.message.content]), [0, 1, 2].map((i) => [i, sum.answer]));
  const stopped = await client.chat.completions.create({...body, stop: [' =']});
  assert.deepEqual([stopped.choices[0].message.content, stopped.choices[0].finish_reason], ['478 + 365', 'stop']);
  const cut = await client.chat.completions.create({...body, max_completion_tokens: 1});
  assert.deepEqual([cut.usage.completion_tokens, cut.choices[0].finish_reason], [1, 'length']);
});

test('chat: many at once have their own answers', async () => {
  const numbers = [1, 2, 3, 4, 5, 6, 7, 8];
  const answers = await Promise.all(numbers.map((i) => client.chat.completions.create(
    {...silent, messages: [user(`What is ${i} + 3?`)]})));
  assert.deepEqual(answers.map((a) => a.choices[0].message.content), numbers.map((i) => `${i} + 3 = ${i + 3}`));
});

test('chat: an image', async () => {
  const url = `data:image/png;base64,${signBase64}`;
  const content = [{type: 'image_url', image_url: {url}}, {type: 'text', text: 'OCR this image.'}];
  const answer = await client.chat.completions.create({...silent, messages: [user(content)]});
  assert.equal(answer.choices[0].message.content, 'TIGER 42');
});

for (const options of [chat, silent]) {
  test(`chat: a tool is called and its result used, ${options === chat ? 'with' : 'without'} reasoning`, async () => {
    const body = {...options, tools: [tool], tool_choice: 'auto'};
    const messages = [user(weather.question)];
    const whole = (await client.chat.completions.create({...body, messages})).choices[0];
    assert.equal(whole.finish_reason, 'tool_calls');
    assert.equal(whole.message.content, null);
    assert.equal(whole.message.tool_calls.length, 1);
    const call = whole.message.tool_calls[0];
    assert.equal(call.type, 'function');
    assert.equal(call.function.name, weather.name);
    assert.deepEqual(JSON.parse(call.function.arguments), weather.input);

    const chunks = await collect(await client.chat.completions.create({...body, messages, stream: true}));
    const choices = chunks.flatMap((chunk) => chunk.choices);
    const pieces = choices.flatMap((c) => c.delta.tool_calls ?? []);
    assert.deepEqual(pieces.map((p) => [p.index, p.type, p.function.name]),
      [[0, 'function', weather.name], ...Array(pieces.length - 1).fill([0, undefined, undefined])]);
    assert.equal(joined(pieces.map((p) => p.function.arguments)), call.function.arguments);
    assert.equal(choices.at(-1).finish_reason, 'tool_calls');

    const result = {role: 'tool', tool_call_id: call.id, content: weather.result};
    const second = await client.chat.completions.create({...body, messages: [...messages, whole.message, result]});
    assert.equal(second.choices[0].message.content, weather.answer);
    assert.equal(second.choices[0].finish_reason, 'stop');
  });
}

for (const stream of [false, true]) {
  test(`chat: runTools${stream ? ', streamed' : ''}`, async () => {
    const asked = [];
    const tools = [{
      type: 'function',
      function: {
        ...tool.function,
        parse: JSON.parse,
        function: (input) => {
          asked.push(input);
          return weather.result;
        },
      },
    }];
    const runner = client.chat.completions.runTools({...silent, messages: [user(weather.question)], tools, stream});
    assert.equal(await runner.finalContent(), weather.answer);
    assert.deepEqual(asked, [weather.input]);
  });
}

test('chat: an answer in the form of a JSON schema', async () => {
  const body = {...chat, messages: [user(sum.question)], response_format: sumFormat};
  const whole = await client.chat.completions.parse(body);
  assert.deepEqual(whole.choices[0].message.parsed, {sum: 843});
  assert.deepEqual(JSON.parse(whole.choices[0].message.content), {sum: 843});
  const chunks = await collect(await client.chat.completions.create({...body, stream: true}));
  assert.equal(joined(chunks.map((c) => c.choices[0].delta.content)), whole.choices[0].message.content);
});

test('completions: whole and streamed', async () => {
  const prompt = '<｜begin▁of▁sentence｜><｜User｜>What is 1 + 2?<｜Assistant｜></think>';
  const whole = await client.completions.create({model, prompt, temperature: 0});
  assert.equal(whole.object, 'text_completion');
  assert.deepEqual(whole.choices.map((c) => [c.index, c.text, c.finish_reason]), [[0, '1 + 2 = 3', 'stop']]);
  const chunks = await collect(await client.completions.create(
    {model, prompt, temperature: 0, stream: true, stream_options: {include_usage: true}}));
  assert.equal(joined(chunks.flatMap((chunk) => chunk.choices).map((c) => c.text)), '1 + 2 = 3');
  assert.deepEqual(chunks.at(-1).usage, whole.usage);
});

test('errors are the classes of the package', async () => {
  const messages = [user(sum.question)];
  const ask = (change) => () => client.chat.completions.create({...chat, messages, ...change});
  const stranger = new OpenAI({baseURL: client.baseURL, apiKey: 'wrong', maxRetries: 0});
  await assert.rejects(() => stranger.chat.completions.create({...chat, messages}),
    (e) => e instanceof OpenAI.AuthenticationError && e.status === 401 && e.requestID.startsWith('req_'));
  await assert.rejects(() => stranger.models.list(), OpenAI.AuthenticationError);
  for (const stream of [false, true]) {
    await assert.rejects(ask({temperature: 9, stream}), (e) => e instanceof OpenAI.BadRequestError &&
      e.param === 'temperature' && e.message === '400 temperature: expected a number from 0 to 2, found 9');
  }
  await assert.rejects(ask({messages: [user('x '.repeat(5000))]}), (e) => e instanceof OpenAI.BadRequestError &&
    e.code === 'context_length_exceeded' && e.param === 'messages');
  const elsewhere = {type: 'image_url', image_url: {url: 'https://example.com/a.png'}};
  await assert.rejects(ask({messages: [user([elsewhere])]}), (e) => e instanceof OpenAI.BadRequestError &&
    e.param === 'messages[0].content[0].image_url.url');
  await assert.rejects(ask({model: 'nobody'}), (e) => e instanceof OpenAI.NotFoundError &&
    e.param === 'model' && e.message === '404 The model `nobody` does not exist.');
  const nonsense = {type: 'json_schema', json_schema: {name: 'x', schema: {type: 'nonsense'}}};
  await assert.rejects(ask({response_format: nonsense}), (e) => e instanceof OpenAI.BadRequestError &&
    e.param === 'response_format');
  await assert.rejects(() => client.models.retrieve('nobody'), OpenAI.NotFoundError);
});

test('a request id comes back', async () => {
  const {request_id: id} = await client.chat.completions.create({...silent, messages: [user(sum.question)]},
    {headers: {'X-Request-Id': 'mine-1'}}).withResponse();
  assert.equal(id, 'mine-1');
});

for (const stream of [true, false]) {
  test(`chat: ${stream ? 'a stream' : 'a whole answer'} that is aborted ends its request`, async () => {
    const headers = {Authorization: `Bearer ${apiKey}`};
    const aborted = () => server.metric('request_success_total', {finished_reason: 'abort'}, headers);
    const before = await aborted();
    const controller = new AbortController();
    const answer = client.chat.completions.create({...silent, ...endless, messages: [user(sum.question)], stream},
      {signal: controller.signal});
    if (stream) {
      for await (const chunk of await answer) {
        if (controller.signal.aborted || !chunk.choices[0].delta.content) continue;
        await server.running(1, headers);
        controller.abort();
      }
    } else {
      const rejected = assert.rejects(answer, OpenAI.APIUserAbortError);
      await server.running(1, headers);
      controller.abort();
      await rejected;
    }
    await server.running(0, headers);
    assert.equal(await aborted(), before + 1);
    assert.equal(await server.metric('num_requests_waiting', {}, headers), 0);
  });
}
