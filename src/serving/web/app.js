// The page at /: a chat over this server's /v1/chat/completions.
import {Rendering} from './markdown.js';

const $ = (id) => document.getElementById(id);
const log = $('log'), prompt = $('prompt');
const mostImageBytes = 20 * 1024 * 1024;
const imageTypes = ['image/png', 'image/jpeg', 'image/webp'];

// ---- What is remembered: settings for this browser, the key for this tab, the conversation not at all.

const settingFields = ['system', 'effort', 'temperature', 'top-p', 'seed', 'max-tokens', 'tools'];

function recall(storage, key) {
  try { return storage.getItem(key); } catch { return null; }
}
function remember(storage, key, value) {
  try { storage.setItem(key, value); } catch { /* a browser that keeps nothing */ }
}

function loadSettings() {
  let saved = {};
  try { saved = JSON.parse(recall(localStorage, 'hadal.settings') ?? '{}') ?? {}; } catch { /* as new */ }
  for (const id of settingFields) if (typeof saved[id] === 'string') $(id).value = saved[id];
  if (saved.thinking === false) $('thinking').checked = false;
  $('api-key').value = recall(sessionStorage, 'hadal.key') ?? '';
}
function saveSettings() {
  const values = {thinking: $('thinking').checked};
  for (const id of settingFields) values[id] = $(id).value;
  remember(localStorage, 'hadal.settings', JSON.stringify(values));
  remember(sessionStorage, 'hadal.key', $('api-key').value);
}

// The tools of the settings as the API takes them; throws with what is wrong.
function tools() {
  const text = $('tools').value.trim();
  if (!text) return [];
  let list;
  try { list = JSON.parse(text); } catch (e) { throw new Error(`Tools are no JSON: ${e.message}`); }
  if (!Array.isArray(list)) throw new Error('Tools must be a list of functions');
  return list.map((t) => {
    const f = t?.function ?? t;
    if (typeof f?.name !== 'string') throw new Error('Each tool needs a "name"');
    return {type: 'function', function: f};
  });
}
function showToolsError() {
  let message = '';
  try { tools(); } catch (e) { message = e.message; }
  $('tools-error').textContent = message;
  return message;
}

// ---- The server.

let model = null;

function headers() {
  const key = $('api-key').value.trim();
  return {'Content-Type': 'application/json', ...(key ? {Authorization: `Bearer ${key}`} : {})};
}

async function errorOf(response) {
  if (response.status === 401) return new Error('The server asks for an API key: see Settings');
  let message = '';
  try { message = (await response.json())?.error?.message ?? ''; } catch { /* no body of ours */ }
  return new Error(message || `The server answered ${response.status} ${response.statusText}`);
}

function askForKey() {
  $('key-error').textContent = $('api-key').value.trim() ? 'The server does not know this key' : 'The server asks for a key';
  openSettings();
  $('api-key').focus();
}

// Finds out what model answers; true if there is one. With `ask`, a key that is missing or wrong is asked for.
async function connect(ask) {
  try {
    const response = await fetch('v1/models', {headers: headers()});
    if (response.status === 401 && ask) askForKey();
    if (!response.ok) throw await errorOf(response);
    const served = (await response.json()).data?.[0];
    if (!served) throw new Error('The server has no model');
    model = served.id;
    $('model').textContent = model;
    $('key-error').textContent = '';
    $('model').title = served.max_model_len ? `${model}, context of ${served.max_model_len.toLocaleString()} tokens` : model;
    $('attach').hidden = served.capabilities?.vision !== true;
    document.title = `${model} · hadal`;
    return true;
  } catch (e) {
    $('model').textContent = e instanceof TypeError ? 'no connection to the server' : e.message;
    return false;
  }
}

// The frames of a stream of server-sent events: the data of each, parsed.
async function* frames(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  for (;;) {
    const {value, done} = await reader.read();
    if (done) return;
    buffer += value;
    for (;;) {
      const end = buffer.match(/\r?\n\r?\n/);
      if (!end) break;
      const frame = buffer.slice(0, end.index);
      buffer = buffer.slice(end.index + end[0].length);
      const data = frame.split(/\r?\n/).filter((l) => l.startsWith('data:')).map((l) => l.slice(5).trimStart()).join('\n');
      if (data === '[DONE]') return;
      if (data) yield JSON.parse(data);
    }
  }
}

// ---- The conversation: messages as the API takes them, each with its place on the page.

let turns = [];       // {role, message, element}; message null: nothing came
let images = [];      // to be sent: data URLs
let running = null;   // AbortController of the answer that is being written

function announce(text) {
  $('announce').textContent = '';
  requestAnimationFrame(() => { $('announce').textContent = text; });
}

const nearEnd = () => log.scrollHeight - log.scrollTop - log.clientHeight < 80;
function follow(was) {
  if (was) log.scrollTop = log.scrollHeight;
}

function make(tag, options = {}, ...children) {
  const element = Object.assign(document.createElement(tag), options);
  element.append(...children);
  return element;
}

function addTurn(role, title) {
  $('welcome').hidden = true;
  const element = make('article', {className: `turn ${role}`});
  const heading = make('h2', {textContent: title});
  heading.id = `turn-${turns.length}-${Date.now()}`;
  element.setAttribute('aria-labelledby', heading.id);
  element.append(heading);
  log.append(element);
  return element;
}

function addUser(text, pictures) {
  const element = addTurn('user', 'You');
  if (text) element.append(make('div', {textContent: text}));
  if (pictures.length) {
    const box = make('div', {className: 'images'});
    pictures.forEach((src, i) => box.append(make('img', {src, alt: `Image ${i + 1} of the message`})));
    element.append(box);
  }
  const content = pictures.length
      ? [...pictures.map((url) => ({type: 'image_url', image_url: {url}})), ...(text ? [{type: 'text', text}] : [])]
      : text;
  turns.push({role: 'user', message: {role: 'user', content}, element});
}

function messages() {
  const system = $('system').value.trim();
  return [...(system ? [{role: 'system', content: system}] : []), ...turns.map((t) => t.message).filter(Boolean)];
}

function requestBody() {
  const number = (id) => ($(id).value.trim() === '' ? undefined : Number($(id).value));
  const functions = tools();
  const thinking = $('thinking').checked;
  return {
    model,
    messages: messages(),
    stream: true,
    stream_options: {include_usage: true},
    chat_template_kwargs: {thinking},
    ...(thinking && $('effort').value ? {reasoning_effort: $('effort').value} : {}),
    ...(functions.length ? {tools: functions} : {}),
    temperature: number('temperature'),
    top_p: number('top-p'),
    seed: number('seed'),
    max_completion_tokens: number('max-tokens'),
  };
}

// One answer on the page while it is written.
class Answer {
  constructor() {
    this.element = addTurn('assistant', model ?? 'Answer');
    this.element.setAttribute('aria-busy', 'true');
    this.body = make('div', {className: 'answer waiting'});
    this.element.append(this.body);
    this.rendering = new Rendering(this.body);
    this.content = this.reasoning = '';
    this.calls = [];
    this.begun = performance.now();
    this.first = this.thought = 0;
    this.finish = null;
    this.usage = null;
  }

  add(delta) {
    const reasoning = delta.reasoning_content ?? delta.reasoning;
    if (reasoning || delta.content || delta.tool_calls) this.first ||= performance.now();
    if (reasoning) {
      this.reasoning += reasoning;
      if (!this.thinking) {
        this.thinking = make('details', {className: 'thinking', open: true});
        this.summary = make('summary', {textContent: 'Thinking…'});
        this.thinkingText = make('div');
        this.thinking.append(this.summary, this.thinkingText);
        this.body.before(this.thinking);
      }
      this.thinkingText.append(reasoning);
    }
    if (delta.content) {
      this.endThinking();
      this.content += delta.content;
      this.stale = true;
    }
    for (const piece of delta.tool_calls ?? []) {
      this.endThinking();
      const call = this.calls[piece.index] ??= this.addCall(piece);
      if (piece.function?.name && !call.name) {
        call.name = piece.function.name;
        call.title.textContent = `Calls ${call.name}`;
      }
      if (piece.function?.arguments) {
        call.arguments += piece.function.arguments;
        call.shown.textContent = call.arguments;
      }
    }
  }
  // Text is laid out once a frame of the screen, however fast it comes.
  paint() {
    if (!this.stale) return;
    this.stale = false;
    this.rendering.show(this.content);
  }
  addCall(piece) {
    const title = make('h3');
    const shown = make('pre', {tabIndex: 0});
    const box = make('section', {className: 'call'}, title, shown);
    this.element.append(box);
    return {id: piece.id, name: '', arguments: '', title, shown, box};
  }
  endThinking() {
    if (!this.thinking || this.thought) return;
    this.thought = performance.now();
    this.thinking.open = false;
    this.summary.textContent = `Thought for ${((this.thought - this.begun) / 1000).toFixed(1)} s`;
  }

  end(error, stopped) {
    this.endThinking();
    this.paint();
    this.body.classList.remove('waiting');
    this.element.removeAttribute('aria-busy');
    for (const call of this.calls) {
      try { call.shown.textContent = JSON.stringify(JSON.parse(call.arguments), null, 2); } catch { /* as it came */ }
    }
    const remarks = [];
    if (stopped) remarks.push('stopped');
    if (this.finish === 'length') remarks.push('cut off: the limit of tokens was reached');
    if (!error && !stopped && !this.content && !this.calls.length) remarks.push('the answer is empty');
    if (error) this.element.append(make('p', {className: 'error', role: 'alert', textContent: error.message}));

    const bar = make('div', {className: 'tools'});
    if (this.content) bar.append(make('button', {type: 'button', textContent: 'Copy', onclick: (e) => copy(this.content, e.target)}));
    bar.append(make('button', {type: 'button', textContent: 'Regenerate', onclick: () => regenerate(this.element)}));
    bar.append(make('span', {textContent: remarks.join(', ')}));
    this.element.append(bar);
    this.showSpeed();
  }
  showSpeed() {
    const tokens = this.usage?.completion_tokens;
    if (!tokens || !this.first) return;
    const seconds = (performance.now() - this.first) / 1000;
    const speed = tokens > 1 && seconds > 0 ? `${((tokens - 1) / seconds).toFixed(1)} tokens/s, ` : '';
    const cached = this.usage.prompt_tokens_details?.cached_tokens;
    $('speed').textContent = `${speed}${tokens} tokens, first after ${((this.first - this.begun) / 1000).toFixed(2)} s` +
                             (cached ? `, ${cached} of ${this.usage.prompt_tokens} cached` : '');
  }

  message() {
    const calls = this.calls.filter(Boolean);
    return {
      role: 'assistant',
      content: this.content || (calls.length ? null : ''),
      ...(this.reasoning && calls.length ? {reasoning_content: this.reasoning} : {}),
      ...(calls.length ? {
        tool_calls: calls.map((c) => ({id: c.id, type: 'function', function: {name: c.name, arguments: c.arguments}})),
      } : {}),
    };
  }
}

function setRunning(controller) {
  running = controller;
  $('send').hidden = controller !== null;
  $('stop').hidden = controller === null;
}

async function answer() {
  let body;
  try { body = requestBody(); } catch (e) { return failBefore(e.message); }
  const controller = new AbortController();
  const chat = turns;  // a new chat may begin meanwhile
  setRunning(controller);
  const shown = new Answer();
  follow(true);
  announce('The answer begins');
  let error = null, painting = 0;
  const paint = () => {
    painting = 0;
    const was = nearEnd();
    shown.paint();
    follow(was);
  };
  try {
    const response = await fetch('v1/chat/completions', {
      method: 'POST', headers: headers(), body: JSON.stringify(body), signal: controller.signal,
    });
    if (!response.ok) throw await errorOf(response);
    for await (const frame of frames(response.body)) {
      if (frame.error) throw new Error(frame.error.message);
      if (frame.usage) shown.usage = frame.usage;
      const choice = frame.choices?.[0];
      if (!choice) continue;
      const was = nearEnd();
      shown.add(choice.delta ?? {});
      follow(was);
      shown.finish = choice.finish_reason ?? shown.finish;
      painting ||= requestAnimationFrame(paint);
    }
    if (!shown.finish) throw new Error('The connection ended before the answer did');
  } catch (e) {
    if (e.name !== 'AbortError') error = e instanceof TypeError ? new Error('The connection to the server was lost') : e;
  }
  const was = nearEnd();
  shown.end(error, controller.signal.aborted);
  setRunning(null);
  const said = shown.content || shown.calls.length;
  chat.push({role: 'assistant', message: said ? shown.message() : null, element: shown.element});
  // Who is reading elsewhere on the page stays there.
  const free = document.activeElement === document.body || $('composer').contains(document.activeElement);
  const result = shown.finish === 'tool_calls' && !error ? askForResults(shown) : undefined;
  if (free) (result ?? prompt).focus();
  follow(was);
  announce(error ? `Error: ${error.message}` : controller.signal.aborted ? 'Stopped' : 'The answer is complete');
}

// The user plays the tools: the results go back once each call has one. Gives the first field for one.
function askForResults(shown) {
  const fields = shown.calls.map((call, i) => {
    const input = make('input', {type: 'text', required: true, id: `result-${Date.now()}-${i}`});
    const label = make('label', {htmlFor: input.id, textContent: `What ${call.name} gives`}, input);
    call.box.append(make('form', {onsubmit: (e) => { e.preventDefault(); send(); }}, label,
                         make('button', {type: 'submit', textContent: 'Send result'})));
    return input;
  });
  const send = () => {
    const missing = fields.find((f) => !f.value);
    if (missing) return missing.focus();
    if (running) return;
    fields.forEach((field, i) => {
      field.form.remove();
      shown.calls[i].box.append(make('pre', {textContent: `→ ${field.value}`}));
      turns.push({role: 'tool', message: {role: 'tool', tool_call_id: shown.calls[i].id, content: field.value}, element: null});
    });
    answer();
  };
  return fields[0];
}

function failBefore(message) {
  const element = addTurn('assistant', 'Error');
  element.append(make('p', {className: 'error', role: 'alert', textContent: message}));
}

function regenerate(element) {
  if (running) return;
  const at = turns.findIndex((t) => t.element === element);
  if (at < 0) return;
  for (let e = element; e; ) {
    const next = e.nextElementSibling;
    e.remove();
    e = next;
  }
  turns = turns.slice(0, at);
  answer();
}

async function copy(text, button) {
  let done = true;
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // Without a secure origin there is no clipboard to write to.
    const area = make('textarea', {value: text, className: 'visually-hidden'});
    document.body.append(area);
    area.select();
    done = document.execCommand('copy');
    area.remove();
    button.focus();
  }
  const label = button.textContent;
  button.textContent = done ? 'Copied' : 'Not copied';
  announce(button.textContent);
  setTimeout(() => { button.textContent = label; }, 1500);
}

// ---- Images.

function showImages() {
  const list = $('attachments');
  list.replaceChildren(...images.map((src, i) => make('li', {},
      make('img', {src, alt: `Image ${i + 1}`}),
      Object.assign(make('button', {type: 'button', textContent: '×', onclick: () => {
        images.splice(i, 1);
        showImages();
        prompt.focus();
      }}), {ariaLabel: `Remove image ${i + 1}`}))));
  list.hidden = images.length === 0;
}

async function addFiles(files) {
  if ($('attach').hidden) return announce('This model does not read images');
  for (const file of files) {
    if (!imageTypes.includes(file.type)) {
      announce(`${file.name} is not a PNG, JPEG or WebP image`);
      continue;
    }
    if (file.size > mostImageBytes) {
      announce(`${file.name} is larger than 20 MiB`);
      continue;
    }
    images.push(await new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result);
      reader.onerror = () => reject(reader.error);
      reader.readAsDataURL(file);
    }));
    announce(`${file.name} is attached`);
  }
  showImages();
}

// ---- Events.

function fitPrompt() {
  const was = nearEnd();
  prompt.style.height = 'auto';
  prompt.style.height = `${prompt.scrollHeight + 2}px`;
  follow(was);
}

async function submit() {
  const text = prompt.value.trim();
  if (running || (!text && !images.length)) return;
  if (!model && !(await connect(true))) return announce($('model').textContent);
  addUser(text, images);
  images = [];
  showImages();
  prompt.value = '';
  fitPrompt();
  await answer();
}

function newChat() {
  running?.abort();
  turns = [];
  for (const element of log.querySelectorAll('.turn')) element.remove();
  $('welcome').hidden = false;
  $('speed').textContent = '';
  prompt.focus();
}

function openSettings() {
  if (!$('settings').open) $('settings').showModal();
}

function closedSettings() {
  const newKey = $('api-key').value !== (recall(sessionStorage, 'hadal.key') ?? '');
  saveSettings();
  connect(newKey);
  prompt.focus();
}

$('composer').addEventListener('submit', (e) => { e.preventDefault(); submit(); });
$('stop').addEventListener('click', () => running?.abort());
$('new-chat').addEventListener('click', newChat);
$('open-settings').addEventListener('click', openSettings);
// While the text is left for the button below it, nothing may move: a click that began would miss.
$('tools').addEventListener('input', () => { if ($('tools-error').textContent) showToolsError(); });
$('settings-form').addEventListener('submit', (e) => { if (showToolsError()) { e.preventDefault(); $('tools').focus(); } });
$('settings').addEventListener('close', closedSettings);
$('thinking').addEventListener('change', saveSettings);
$('attach').addEventListener('click', () => $('files').click());
$('files').addEventListener('change', async (e) => { await addFiles([...e.target.files]); e.target.value = ''; prompt.focus(); });

prompt.addEventListener('input', fitPrompt);
prompt.addEventListener('keydown', (e) => {
  // An input method's Enter ends its composition, not the message.
  if (e.key === 'Enter' && !e.shiftKey && !e.isComposing) { e.preventDefault(); submit(); }
});
prompt.addEventListener('paste', (e) => {
  const files = [...e.clipboardData.files];
  if (files.length) { e.preventDefault(); addFiles(files); }
});
document.addEventListener('keydown', (e) => {
  if (e.key === 'Escape' && running && !$('settings').open) running.abort();
  if (e.ctrlKey && e.shiftKey && e.key.toLowerCase() === 'o') { e.preventDefault(); newChat(); }
});
log.addEventListener('click', (e) => {
  const button = e.target.closest('[data-copy]');
  if (button) copy(button.parentElement.querySelector('code').textContent, button);
});

let dragged = 0;
const hasFiles = (e) => [...(e.dataTransfer?.types ?? [])].includes('Files');
document.addEventListener('dragenter', (e) => { if (hasFiles(e) && ++dragged) $('drop').hidden = $('attach').hidden; });
document.addEventListener('dragleave', (e) => { if (hasFiles(e) && --dragged <= 0) { dragged = 0; $('drop').hidden = true; } });
document.addEventListener('dragover', (e) => { if (hasFiles(e)) e.preventDefault(); });
document.addEventListener('drop', (e) => {
  if (!hasFiles(e)) return;
  e.preventDefault();
  dragged = 0;
  $('drop').hidden = true;
  addFiles([...e.dataTransfer.files]);
});

loadSettings();
fitPrompt();
connect(true);
