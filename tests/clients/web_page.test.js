// The page at / in headless Chromium, used as a person uses it. Screenshots go to HADAL_SCREENSHOTS.
import assert from 'node:assert/strict';
import {existsSync, mkdtempSync, rmSync} from 'node:fs';
import {tmpdir} from 'node:os';
import {basename, join} from 'node:path';
import {after, before, test} from 'node:test';
import {chromium} from 'playwright-core';
import {endless, model, Server, sign, signBase64, sum, user, weather, webFile} from './server.js';

const apiKey = 'sesame';
const args = ['--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run', '--disable-background-networking',
  '--disable-component-update', '--disable-sync'];
const wide = {width: 1280, height: 800};
const narrow = {width: 390, height: 844};

let server, browser, profile;
before(async () => {
  server = await Server.start();
  profile = mkdtempSync(join(tmpdir(), 'hadal-page-'));
  browser = await chromium.launch(
    {executablePath: '/usr/bin/chromium', args, env: {...process.env, HOME: profile}});
});
after(async () => {
  await browser?.close();
  if (profile) rmSync(profile, {recursive: true, force: true});
  await server?.stop();
});

// The settings that a person has left behind: answers are the most likely ones.
const remembered = (origin, settings) => ({
  cookies: [],
  origins: [{
    origin,
    localStorage: [{name: 'hadal.settings', value: JSON.stringify({temperature: '0', ...settings})}],
  }],
});

// A test with a page of its own. At its end nothing stands in the console and nothing was asked of another server.
function pageTest(name, options, body) {
  const {settings = {}, at = () => server, viewport = wide, colorScheme = 'light', expected = []} = options;
  test(name, async () => {
    const {url} = at();
    const context = await browser.newContext({
      viewport, colorScheme, permissions: ['clipboard-read', 'clipboard-write'],
      storageState: remembered(url, settings),
    });
    context.setDefaultTimeout(30000);
    const faults = [];
    const page = await context.newPage();
    page.on('console', (message) => {
      if (['error', 'warning'].includes(message.type())) faults.push(message.text());
    });
    page.on('pageerror', (error) => faults.push(String(error)));
    page.on('request', (request) => {
      if (!request.url().startsWith(`${url}/`) && !request.url().startsWith('data:')) faults.push(request.url());
    });
    if (process.env.HADAL_PAGE_FROM_SOURCE) await serveFromSource(page);
    await page.goto(`${url}/`);
    await body(page);
    assert.deepEqual(faults.filter((fault) => !expected.some((pattern) => pattern.test(fault))), []);
    await context.close();
  });
}

// The page's files as they are in the tree, with the headers of the server: to change them without a build.
async function serveFromSource(page) {
  await page.route(/^http:\/\/[^/]+\/[\w.]*$/, async (route) => {
    const name = basename(new URL(route.request().url()).pathname) || 'index.html';
    if (!existsSync(webFile(name))) return route.continue();
    await route.fulfill({response: await route.fetch(), path: webFile(name)});
  });
}

const screenshot = (page, name) => page.screenshot({path: join(process.env.HADAL_SCREENSHOTS, `${name}.png`)});
const prompt = (page) => page.getByRole('textbox', {name: 'Message'});
const button = (page, name) => page.getByRole('button', {name, exact: true});
const answers = (page) => page.locator('.turn.assistant:not([aria-busy])');
const running = (page) => page.locator('.turn.assistant[aria-busy=true]');

async function ready(page) {
  await page.locator('#model', {hasText: model}).waitFor();
}

async function ask(page, question) {
  await prompt(page).fill(question);
  await prompt(page).press('Enter');
}

async function post(path, body) {
  const headers = {'Content-Type': 'application/json'};
  const response = await fetch(`${server.url}${path}`, {method: 'POST', headers, body: JSON.stringify(body)});
  assert.equal(response.status, 200);
  return response.json();
}

// The text of the n-th answer, once it is complete.
async function answer(page, n = 0) {
  const turn = answers(page).nth(n);
  await turn.waitFor();
  return turn.locator('.answer').innerText();
}

// Makes the answers of this page go on until the limit of tokens.
async function makeEndless(page, more = {}) {
  await page.route('**/v1/chat/completions', (route) => route.continue(
    {postData: JSON.stringify({...route.request().postDataJSON(), ...endless, ...more})}));
}

async function attach(page, ...files) {
  const chooser = page.waitForEvent('filechooser');
  await button(page, 'Add images').click();
  await (await chooser).setFiles(files);
}

pageTest('a question is answered, with thoughts to unfold', {}, async (page) => {
  await ready(page);
  assert.equal(await page.title(), `${model} · hadal`);
  assert.equal(await prompt(page).evaluate((e) => e === document.activeElement), true);
  await page.keyboard.type(sum.question);
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('.turn.user > div').innerText(), sum.question);
  assert.equal(await prompt(page).inputValue(), '');
  assert.equal(await answer(page), sum.answer);

  const whole = await post('/v1/chat/completions', {messages: [user(sum.question)], temperature: 0});
  const thoughts = page.locator('details.thinking');
  assert.equal(await thoughts.locator('div').isVisible(), false);
  assert.match(await thoughts.locator('summary').innerText(), /^Thought for \d+\.\d s$/);
  await thoughts.locator('summary').click();
  assert.equal(await thoughts.locator('div').innerText(), whole.choices[0].message.reasoning_content);
  assert.match(await page.locator('#speed').innerText(), /^[\d.]+ tokens\/s, 86 tokens, first after [\d.]+ s$/);
  await screenshot(page, 'answer');
});

pageTest('the next question has what was said before', {settings: {thinking: false}}, async (page) => {
  await ready(page);
  const bodies = [];
  page.on('request', (request) => {
    if (request.method() === 'POST') bodies.push(request.postDataJSON());
  });
  await ask(page, sum.question);
  assert.equal(await answer(page), sum.answer);
  await prompt(page).pressSequentially('What is');
  await prompt(page).press('Shift+Enter');
  await prompt(page).pressSequentially('4 + 3?');
  await prompt(page).press('Enter');
  await answer(page, 1);
  assert.deepEqual(bodies.map((body) => body.messages), [
    [user(sum.question)],
    [user(sum.question), {role: 'assistant', content: sum.answer}, user('What is\n4 + 3?')],
  ]);
  await button(page, 'New chat').click();
  assert.equal(await page.locator('.turn').count(), 0);
  await ask(page, 'What is 4 + 3?');
  assert.equal(await answer(page), '4 + 3 = 7');
  assert.deepEqual(bodies[2].messages, [user('What is 4 + 3?')]);
});

pageTest('without Think there are no thoughts', {}, async (page) => {
  await ready(page);
  await page.getByLabel('Think').uncheck();
  await ask(page, sum.question);
  assert.equal(await answer(page), sum.answer);
  assert.equal(await page.locator('details.thinking').count(), 0);
  await page.reload();
  assert.equal(await page.getByLabel('Think').isChecked(), false);
});

for (const by of ['the button', 'Escape', 'a new chat']) {
  pageTest(`an answer is seen while written and stopped by ${by}`, {settings: {thinking: false}}, async (page) => {
    await ready(page);
    await makeEndless(page);
    const before = await server.metric('request_success_total', {finished_reason: 'abort'});
    await ask(page, sum.question);
    const written = running(page).locator('.answer p').first();
    await written.filter({hasText: sum.answer}).waitFor();
    await server.running(1);
    assert.equal(await button(page, 'Send').isVisible(), false);
    if (by === 'the button') await screenshot(page, 'streaming');
    if (by === 'the button') await button(page, 'Stop').click();
    if (by === 'Escape') await page.keyboard.press('Escape');
    if (by === 'a new chat') await button(page, 'New chat').click();
    await button(page, 'Send').waitFor();
    assert.equal(await button(page, 'Stop').isVisible(), false);
    if (by === 'a new chat') {
      assert.equal(await page.locator('.turn').count(), 0);
      assert.equal(await page.locator('#welcome').isVisible(), true);
    } else {
      await answers(page).getByText('stopped', {exact: true}).waitFor();
      assert.equal((await answer(page)).startsWith(sum.answer), true);
    }
    await server.running(0);
    assert.equal(await server.metric('request_success_total', {finished_reason: 'abort'}), before + 1);
  });
}

pageTest('thoughts are open while they are written', {}, async (page) => {
  await ready(page);
  const {tokens} = await post('/tokenize', {prompt: '</think>'});
  assert.equal(tokens.length, 1);
  await makeEndless(page, {logit_bias: {[tokens[0]]: -100}});
  await ask(page, sum.question);
  await page.locator('details.thinking[open] summary', {hasText: 'Thinking…'}).waitFor();
  await page.locator('details.thinking[open] div', {hasText: 'Ones: 8'}).waitFor();
  await tabTo(page, 'summary: Thinking…', 'Shift+Tab');
  await page.keyboard.press('Escape');
  await page.locator('details.thinking:not([open]) summary', {hasText: 'Thought for'}).waitFor();
  await answers(page).waitFor();
  assert.match(await focused(page), /^summary: Thought for/);
});

pageTest('an answer is made again', {settings: {thinking: false}}, async (page) => {
  await ready(page);
  await ask(page, sum.question);
  assert.equal(await answer(page), sum.answer);
  const first = await answers(page).elementHandle();
  await button(page, 'Regenerate').click();
  await page.waitForFunction((element) => !element.isConnected, first);
  assert.equal(await answer(page), sum.answer);
  assert.equal(await page.locator('.turn.assistant').count(), 1);
  assert.equal(await page.locator('.turn.user').count(), 1);
});

pageTest('an answer is copied', {settings: {thinking: false}}, async (page) => {
  await ready(page);
  await ask(page, sum.question);
  await answer(page);
  await button(page, 'Copy').click();
  await button(page, 'Copied').waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), sum.answer);
  // A page that did not come over a secure connection has no clipboard to write to.
  await page.evaluate(() => navigator.clipboard.writeText('something else'));
  await button(page, 'Copy').waitFor();
  await page.evaluate(() => { navigator.clipboard.writeText = () => Promise.reject(new Error('refused')); });
  await button(page, 'Copy').click();
  await button(page, 'Copied').waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), sum.answer);
});

pageTest('images are attached, taken back and read', {settings: {thinking: false}}, async (page) => {
  await ready(page);
  await attach(page, sign, sign);
  const attached = page.locator('#attachments li');
  await attached.nth(1).waitFor();
  await screenshot(page, 'attachments');
  await button(page, 'Remove image 2').click();
  assert.equal(await attached.count(), 1);
  await ask(page, 'OCR this image.');
  assert.equal(await page.locator('.turn.user img').getAttribute('src'), `data:image/png;base64,${signBase64}`);
  assert.equal(await attached.count(), 0);
  assert.equal(await answer(page), 'TIGER 42');
  await screenshot(page, 'image');
});

pageTest('images are dropped and pasted', {settings: {thinking: false}}, async (page) => {
  await ready(page);
  const files = await page.evaluateHandle(async (base64) => {
    const bytes = await (await new Response(Uint8Array.from(atob(base64), (c) => c.charCodeAt(0)))).arrayBuffer();
    const data = new DataTransfer();
    data.items.add(new File([bytes], 'sign.png', {type: 'image/png'}));
    data.items.add(new File(['text'], 'notes.txt', {type: 'text/plain'}));
    return data;
  }, signBase64);
  await page.dispatchEvent('main', 'dragenter', {dataTransfer: files});
  assert.equal(await page.locator('#drop').isVisible(), true);
  await screenshot(page, 'drop');
  await page.dispatchEvent('main', 'drop', {dataTransfer: files});
  assert.equal(await page.locator('#drop').isVisible(), false);
  await page.locator('#attachments li').waitFor();
  await page.locator('#announce', {hasText: 'notes.txt is not a PNG, JPEG or WebP image'}).waitFor();
  await page.evaluate((clipboardData) => {
    document.getElementById('prompt').dispatchEvent(new ClipboardEvent('paste', {clipboardData, bubbles: true}));
  }, files);
  await page.locator('#attachments li').nth(1).waitFor();
  await button(page, 'Remove image 2').click();
  await ask(page, 'OCR this image.');
  assert.equal(await answer(page), 'TIGER 42');
});

pageTest('settings are kept; tools are called, and the person gives their result', {}, async (page) => {
  await ready(page);
  await button(page, 'Settings').click();
  const dialog = page.getByRole('dialog', {name: 'Settings'});
  await dialog.getByLabel('System prompt').fill('You are a helpful assistant.');
  await dialog.getByLabel('Tools, as a JSON list of functions').fill('[{"name": ');
  await dialog.getByRole('button', {name: 'Done'}).click();
  assert.match(await dialog.getByRole('alert').filter({hasText: 'Tools'}).innerText(), /^Tools are no JSON: /);
  const {name, description, parameters} = weather;
  await dialog.getByLabel('Tools, as a JSON list of functions').fill(JSON.stringify([{name, description, parameters}]));
  await screenshot(page, 'settings');
  await dialog.getByRole('button', {name: 'Done'}).click();
  await dialog.waitFor({state: 'hidden'});
  await page.reload();
  await ready(page);

  const request = page.waitForRequest((r) => r.method() === 'POST');
  await ask(page, weather.question);
  const body = (await request).postDataJSON();
  assert.deepEqual(body.messages[0], {role: 'system', content: 'You are a helpful assistant.'});
  assert.equal(body.temperature, 0);
  await answers(page).waitFor();
  assert.equal(await page.locator('.call h3').innerText(), 'Calls get_weather');
  assert.deepEqual(JSON.parse(await page.locator('.call pre').innerText()), weather.input);
  const result = page.getByLabel('What get_weather gives');
  assert.equal(await result.evaluate((e) => e === document.activeElement), true);
  await result.fill(weather.result);
  await screenshot(page, 'tool');
  await result.press('Enter');
  assert.equal(await answer(page, 1), weather.answer);
});

pageTest('what the server refuses is shown', {expected: [/status of 400/]}, async (page) => {
  await ready(page);
  await ask(page, 'x '.repeat(5000));
  await answers(page).waitFor();
  assert.equal(await answers(page).getByRole('alert').innerText(),
    'messages: the prompt has 10003 tokens, the context 2048: expected at most 2047 so that an answer has room');
});

pageTest('a connection that breaks off is shown', {settings: {thinking: false}, expected: [/ERR_FAILED/]},
  async (page) => {
    await ready(page);
    await page.route('**/v1/chat/completions', (route) => route.abort());
    await ask(page, sum.question);
    await answers(page).waitFor();
    assert.equal(await answers(page).getByRole('alert').innerText(), 'The connection to the server was lost');
    await page.unroute('**/v1/chat/completions');
    await button(page, 'Regenerate').click();
    await answers(page).getByText(sum.answer, {exact: true}).waitFor();
  });

pageTest('Markdown is laid out, and no text becomes HTML', {}, async (page) => {
  await ready(page);
  const html = await page.evaluate(async () => {
    const {Rendering} = await import('/markdown.js');
    const box = document.createElement('div');
    const rendering = new Rendering(box);
    const text = '# T\n\n**b** `a<b` <img src=x onerror=alert(1)>\n\n- one\n- two\n\n```js\nlet x = "<b>";\n```\n\n' +
      '| a | b |\n|---|---|\n| 1 | 2 |\n\n[l](https://example.com/) [s](javascript:alert(1))';
    for (let end = 1; end <= text.length; ++end) rendering.show(text.slice(0, end));
    return box.innerHTML;
  });
  assert.equal(html, '<h3>T</h3>' +
    '<p><strong>b</strong> <code>a&lt;b</code> &lt;img src=x onerror=alert(1)&gt;</p>' +
    '<ul><li>one</li><li>two</li></ul>' +
    '<div class="code"><pre tabindex="0"><code data-language="js">let x = "&lt;b&gt;";</code></pre>' +
    '<button type="button" aria-label="Copy js code" data-copy="code">Copy</button></div>' +
    '<table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>' +
    '<tbody><tr><td>1</td><td>2</td></tr></tbody></table>' +
    '<p><a href="https://example.com/" rel="noopener noreferrer nofollow" target="_blank">l</a> ' +
    '[s](javascript:alert(1))</p>');
});

// What has the focus: its role or tag and its name.
const focused = (page) => page.evaluate(() => {
  const e = document.activeElement;
  const name = e.labels?.[0]?.textContent ?? e.getAttribute('aria-label') ?? e.textContent;
  return `${e.tagName.toLowerCase()}: ${name.trim().split(/ of |,|\n/)[0]}`;
});
const outlined = (page) => page.evaluate(() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle === 'solid' && parseFloat(style.outlineWidth) >= 2;
});
// Tabs until the element is focused that `last` names; gives what was passed.
async function tabTo(page, last, key = 'Tab') {
  const passed = [];
  for (let i = 0; i < 40 && passed.at(-1) !== last; ++i) {
    await page.keyboard.press(key);
    passed.push(await focused(page));
    if (passed.at(-1).startsWith('body')) passed.pop();
    else assert.equal(await outlined(page), true, `focus is not seen on ${passed.at(-1)}`);
  }
  assert.equal(passed.at(-1), last);
  return passed;
}

pageTest('keys alone reach and do everything', {}, async (page) => {
  await ready(page);
  await page.locator('h1').click();
  assert.deepEqual(await tabTo(page, 'button: Send'), ['button: New chat', 'button: Settings', 'main: Conversation',
    'button: Add images', 'textarea: Message', 'input: Think', 'button: Send']);
  await tabTo(page, 'textarea: Message', 'Shift+Tab');
  await page.keyboard.type(sum.question);
  await page.keyboard.press('Enter');
  assert.equal(await answer(page), sum.answer);
  assert.equal(await focused(page), 'textarea: Message');
  const back = await tabTo(page, 'a: Skip to the message box', 'Shift+Tab');
  assert.deepEqual(back.map((name) => name.replace(/[\d.]+ s$/, 'N s')), ['button: Add images', 'button: Regenerate',
    'button: Copy', 'summary: Thought for N s', 'main: Conversation', 'button: Settings', 'button: New chat',
    'a: Skip to the message box']);
  await page.keyboard.press('Enter');
  await page.keyboard.type('x');
  assert.equal(await prompt(page).inputValue(), 'x');

  const summary = page.locator('details.thinking summary');
  await tabTo(page, `summary: ${await summary.innerText()}`, 'Shift+Tab');
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('details.thinking div').isVisible(), true);
  await screenshot(page, 'keyboard');
  await tabTo(page, 'button: Copy');
  await page.keyboard.press('Space');
  await button(page, 'Copied').waitFor();
  assert.equal(await page.evaluate(() => navigator.clipboard.readText()), sum.answer);

  await tabTo(page, 'button: Settings', 'Shift+Tab');
  await page.keyboard.press('Enter');
  const fields = await tabTo(page, 'button: Done');
  assert.deepEqual(fields, ['select: Effort', 'input: Temperature', 'input: Top p',
    'input: Seed', 'input: Most tokens', 'textarea: Tools', 'input: API key', 'button: Done']);
  await page.keyboard.press('Escape');
  await page.getByRole('dialog').waitFor({state: 'hidden'});
  await page.keyboard.press('Control+Shift+O');
  assert.equal(await page.locator('.turn').count(), 0);
});

// What is wider than the window, what is out of it, and text with less contrast than WCAG's AA asks for.
const blemishes = (page) => page.evaluate(() => {
  const parse = (color) => color.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => [r, g, b].map((c) => c / 255)
    .map((c) => (c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4))
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color[3] === undefined || color[3] === 1) return color;
    }
    return [255, 255, 255];
  };
  const found = [];
  if (document.documentElement.scrollWidth > innerWidth) found.push('the page is wider than the window');
  for (const e of document.querySelectorAll('body *')) {
    const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
    if (!e.checkVisibility() || e.closest('.visually-hidden, .skip')) continue;
    if (!own && !e.matches('input, textarea, img')) continue;
    const box = e.getBoundingClientRect();
    const name = `${e.tagName} ${e.id || e.className} ${e.textContent.trim().slice(0, 20)}`;
    if (box.left < 0 || box.right > innerWidth + 0.5) found.push(`${name} is cut off`);
    if (e.scrollWidth > e.clientWidth + 1 && e.matches('button, summary, label')) found.push(`${name} overflows`);
    const [dark, light] = [parse(getComputedStyle(e).color), behind(e)].map(luminance).sort((a, b) => a - b);
    if ((light + 0.05) / (dark + 0.05) < 4.5) found.push(`${name} has little contrast`);
  }
  return found;
});

for (const [width, viewport] of Object.entries({wide, narrow})) {
  for (const colorScheme of ['light', 'dark']) {
    pageTest(`the layout is whole: ${width}, ${colorScheme}`, {viewport, colorScheme}, async (page) => {
      await ready(page);
      const back = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      assert.equal(back, colorScheme === 'dark' ? 'rgb(13, 20, 27)' : 'rgb(251, 252, 253)');
      assert.deepEqual(await blemishes(page), []);
      await screenshot(page, `${width}-${colorScheme}-empty`);
      await attach(page, sign);
      await page.locator('#attachments li').waitFor();
      await ask(page, 'OCR this image.');
      await answer(page);
      await ask(page, sum.question);
      await answer(page, 1);
      await page.locator('details.thinking summary').last().click();
      await answers(page).last().getByRole('button', {name: 'Regenerate'}).scrollIntoViewIfNeeded();
      await prompt(page).fill('One line\nand another,\nand a third');
      assert.equal(await page.locator('main').evaluate((e) => e.scrollHeight - e.scrollTop - e.clientHeight < 2), true);
      assert.deepEqual(await blemishes(page), []);
      await screenshot(page, `${width}-${colorScheme}-chat`);
      await button(page, 'Settings').click();
      assert.deepEqual(await blemishes(page), []);
      await screenshot(page, `${width}-${colorScheme}-settings`);
    });
  }
}

let locked;
before(async () => { locked = await Server.start('--api-key', apiKey); });
after(() => locked?.stop());

pageTest('a key is asked for until it is right', {at: () => locked, expected: [/status of 401/]}, async (page) => {
  const dialog = page.getByRole('dialog', {name: 'Settings'});
  const key = dialog.getByLabel('API key');
  const said = (text) => dialog.getByRole('alert').filter({hasText: text}).waitFor();
  await said('The server asks for a key');
  assert.equal(await key.evaluate((e) => e === document.activeElement), true);
  assert.equal(await key.getAttribute('type'), 'password');
  await screenshot(page, 'key');
  await page.keyboard.type('wrong');
  await page.keyboard.press('Enter');
  await said('The server does not know this key');
  await page.keyboard.press('Escape');
  await page.locator('#model', {hasText: 'The server asks for an API key: see Settings'}).waitFor();
  await dialog.waitFor({state: 'hidden'});

  await ask(page, sum.question);
  await said('The server does not know this key');
  await key.fill(apiKey);
  await key.press('Enter');
  await ready(page);
  await dialog.waitFor({state: 'hidden'});
  assert.equal(await prompt(page).inputValue(), sum.question);
  await prompt(page).press('Enter');
  assert.equal(await answer(page), sum.answer);

  // The key is kept for this tab, and only there.
  await page.reload();
  await ready(page);
  const kept = await page.evaluate(() => [JSON.stringify(localStorage), sessionStorage.getItem('hadal.key')]);
  assert.deepEqual([kept[0].includes(apiKey), kept[1]], [false, apiKey]);
});
