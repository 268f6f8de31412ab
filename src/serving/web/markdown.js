// Markdown as models write it, made into elements: no text of an answer ever becomes HTML. Unknown syntax stays text.

function inline(text, parent) {
  // Code first: nothing in it is markup.
  const pattern = /(`+)([^]*?[^`])\1(?!`)|\*\*([^]+?)\*\*|__([^]+?)__|\*([^\s*][^*]*?)\*|~~([^]+?)~~|\[([^\]]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>"')\]]+)/g;
  let at = 0;
  const wrap = (tag, inner) => {
    const element = document.createElement(tag);
    inline(inner, element);
    parent.append(element);
  };
  const link = (label, href) => {
    const a = document.createElement('a');
    a.href = href;
    a.rel = 'noopener noreferrer nofollow';
    a.target = '_blank';
    a.textContent = label;
    parent.append(a);
  };
  for (const m of text.matchAll(pattern)) {
    parent.append(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[2] !== undefined) {
      const code = document.createElement('code');
      code.textContent = m[2].length > 2 ? m[2].replace(/^ (.*) $/s, '$1') : m[2];
      parent.append(code);
    } else if (m[3] ?? m[4]) {
      wrap('strong', m[3] ?? m[4]);
    } else if (m[5]) {
      wrap('em', m[5]);
    } else if (m[6]) {
      wrap('del', m[6]);
    } else if (m[8]) {
      link(m[7], m[8]);
    } else {
      link(m[9], m[9]);
    }
  }
  parent.append(text.slice(at));
}

function codeBlock(language, lines) {
  const box = document.createElement('div');
  box.className = 'code';
  const pre = document.createElement('pre');
  pre.tabIndex = 0;  // wide code is scrolled by keys, too
  const code = document.createElement('code');
  if (language) code.dataset.language = language;
  code.textContent = lines.join('\n');
  pre.append(code);
  const copy = document.createElement('button');
  copy.type = 'button';
  copy.textContent = 'Copy';
  copy.setAttribute('aria-label', language ? `Copy ${language} code` : 'Copy code');
  copy.dataset.copy = 'code';
  box.append(pre, copy);
  return box;
}

const cells = (line) => line.trim().replace(/^\||\|$/g, '').split('|').map((c) => c.trim());
const isRule = (line) => /^\s*\|?\s*:?-{2,}:?\s*(\|\s*:?-{2,}:?\s*)*\|?\s*$/.test(line) && line.includes('-');

function table(rows) {
  const element = document.createElement('table');
  const fill = (parent, tag, line) => {
    const tr = parent.insertRow();
    for (const cell of cells(line)) {
      const td = document.createElement(tag);
      if (tag === 'th') td.scope = 'col';
      inline(cell, td);
      tr.append(td);
    }
  };
  fill(element.createTHead(), 'th', rows[0]);
  const body = element.createTBody();
  for (const line of rows.slice(2)) fill(body, 'td', line);
  return element;
}

const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

// Lines of a list from `at` on: [element, the line behind it].
function list(lines, at) {
  const first = lines[at].match(item);
  const depth = first[1].length;
  const ordered = /\d/.test(first[2]);
  const element = document.createElement(ordered ? 'ol' : 'ul');
  if (ordered) element.start = parseInt(first[2], 10);
  let current = null;
  while (at < lines.length) {
    const m = lines[at].match(item);
    if (m && m[1].length >= depth + 2 && current) {
      const [inner, next] = list(lines, at);
      current.append(inner);
      at = next;
    } else if (m && m[1].length >= depth && /\d/.test(m[2]) === ordered) {
      current = document.createElement('li');
      inline(m[3], current);
      element.append(current);
      ++at;
    } else if (!m && current && /^\s+\S/.test(lines[at])) {
      current.append(document.createElement('br'));
      inline(lines[at].trim(), current);
      ++at;
    } else if (!m && !lines[at].trim() && lines[at + 1]?.match(item)?.[1].length >= depth) {
      ++at;  // an empty line between items
    } else {
      break;
    }
  }
  return [element, at];
}

// The blocks of `text`. Each has the source it was made of in `source`.
export function blocks(text) {
  const lines = text.replace(/\r\n?/g, '\n').split('\n');
  const out = [];
  let at = 0;
  const add = (element, from) => out.push({element, source: lines.slice(from, at).join('\n')});
  while (at < lines.length) {
    const from = at, line = lines[at];
    const fence = line.match(/^\s{0,3}(`{3,}|~{3,})\s*([\w+#.-]*)/);
    const heading = line.match(/^(#{1,6})\s+(.*?)\s*#*$/);
    if (!line.trim()) {
      ++at;
    } else if (fence) {
      const end = new RegExp(`^\\s{0,3}${fence[1][0]}{${fence[1].length},}\\s*$`);
      const code = [];
      for (++at; at < lines.length && !end.test(lines[at]); ++at) code.push(lines[at]);
      ++at;
      add(codeBlock(fence[2], code), from);
    } else if (heading) {
      // The page has h1 and h2 of its own.
      const element = document.createElement(`h${Math.min(6, heading[1].length + 2)}`);
      inline(heading[2], element);
      ++at;
      add(element, from);
    } else if (/^\s{0,3}([-*_])(\s*\1){2,}\s*$/.test(line)) {
      ++at;
      add(document.createElement('hr'), from);
    } else if (line.includes('|') && lines[at + 1] !== undefined && isRule(lines[at + 1])) {
      const rows = [];
      while (at < lines.length && lines[at].includes('|')) rows.push(lines[at++]);
      add(table(rows), from);
    } else if (item.test(line)) {
      const [element, next] = list(lines, at);
      at = Math.max(next, at + 1);
      add(element, from);
    } else if (/^\s{0,3}>/.test(line)) {
      const quoted = [];
      while (at < lines.length && /^\s{0,3}>/.test(lines[at])) quoted.push(lines[at++].replace(/^\s{0,3}> ?/, ''));
      const element = document.createElement('blockquote');
      for (const block of blocks(quoted.join('\n'))) element.append(block.element);
      add(element, from);
    } else {
      const words = [];
      while (at < lines.length && lines[at].trim() && !(words.length && /^\s{0,3}(`{3,}|~{3,}|#{1,6}\s|>)/.test(lines[at])) &&
             !(words.length && item.test(lines[at]))) {
        words.push(lines[at++]);
      }
      const element = document.createElement('p');
      words.forEach((word, i) => {
        if (i > 0) element.append(document.createElement('br'));
        inline(word.trim(), element);
      });
      add(element, from);
    }
  }
  return out;
}

// Shows a text that grows: blocks whose source is as before keep their elements (and what is selected in them).
export class Rendering {
  constructor(parent) {
    this.parent = parent;
    this.shown = [];
  }
  show(text) {
    const next = blocks(text);
    let same = 0;
    while (same < this.shown.length && same < next.length && this.shown[same].source === next[same].source) ++same;
    for (const block of this.shown.slice(same)) block.element.remove();
    for (const block of next.slice(same)) this.parent.append(block.element);
    this.shown = [...this.shown.slice(0, same), ...next.slice(same)];
  }
}
