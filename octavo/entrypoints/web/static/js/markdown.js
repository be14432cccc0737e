// Markdown to DOM nodes: what models write, and no more. No HTML is ever parsed: every piece of the
// text becomes a text node, and links are made only for http, https and mailto.

import { el } from "./dom.js";

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`]*)$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)\s*#*\s*$/;
const ITEM = /^( *)([-*+]|\d{1,9}[.)])\s+(.*)$/;
const RULE = /^ {0,3}([-*_])( *\1){2,} *$/;
const QUOTE = /^ {0,3}> ?(.*)$/;
const TABLE_RULE = /^ *\|? *:?-+:? *(\| *:?-+:? *)*\|? *$/;
const MAX_DEPTH = 24;

/**
 * Nodes for a text.
 * `codeBlock(code, language)` makes the element of a fenced block.
 */
export function renderMarkdown(text, codeBlock = plainCodeBlock) {
  return blocks(text.replaceAll("\r\n", "\n").split("\n"), codeBlock, 0);
}

function plainCodeBlock(code) {
  return el("pre", {}, el("code", {}, code));
}

function blocks(lines, codeBlock, depth) {
  const nodes = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) nodes.push(el("p", {}, ...withBreaks(paragraph)));
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const end = lines.findIndex(
        (other, j) =>
          j > i && other.trim().startsWith(fence[1]) && !other.trim().replaceAll(fence[1][0], ""),
      );
      const last = end < 0 ? lines.length : end;
      nodes.push(codeBlock(lines.slice(i + 1, last).join("\n"), fence[2].trim()));
      i = last;
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      flush();
      // The page has its own h1 and h2.
      nodes.push(el(`h${Math.min(6, heading[1].length + 2)}`, {}, ...inline(heading[2])));
    } else if (RULE.test(line)) {
      flush();
      nodes.push(el("hr"));
    } else if (QUOTE.test(line) && depth < MAX_DEPTH) {
      flush();
      const [inner, next] = takeWhile(lines, i, (l) => QUOTE.exec(l)?.[1] ?? null);
      nodes.push(el("blockquote", {}, ...blocks(inner, codeBlock, depth + 1)));
      i = next - 1;
    } else if (ITEM.test(line) && depth < MAX_DEPTH) {
      flush();
      const [list, next] = listAt(lines, i, codeBlock, depth);
      nodes.push(list);
      i = next - 1;
    } else if (line.includes("|") && TABLE_RULE.test(lines[i + 1] ?? "")) {
      flush();
      const [table, next] = tableAt(lines, i);
      nodes.push(table);
      i = next - 1;
    } else if (line.trim() === "") {
      flush();
    } else {
      paragraph.push(line.trim());
    }
  }
  flush();
  return nodes;
}

function takeWhile(lines, start, inner) {
  const taken = [];
  let i = start;
  for (; i < lines.length; i++) {
    const found = inner(lines[i]);
    if (found === null) break;
    taken.push(found);
  }
  return [taken, i];
}

function listAt(lines, start, codeBlock, depth) {
  const [, indent, mark] = ITEM.exec(lines[start]);
  const isOrdered = /\d/.test(mark);
  const first = isOrdered ? Number.parseInt(mark, 10) : 1;
  const list = el(isOrdered ? "ol" : "ul", { start: isOrdered && first !== 1 && String(first) });
  let i = start;
  while (i < lines.length) {
    const item = ITEM.exec(lines[i]);
    if (!item || item[1].length > indent.length + 1 || item[1].length < indent.length) break;
    if (/\d/.test(item[2]) !== isOrdered) break;
    const width = item[1].length + item[2].length + 1;
    const body = [item[3]];
    for (i += 1; i < lines.length; i++) {
      const line = lines[i];
      const isIndented = line.startsWith(" ".repeat(Math.min(width, indent.length + 2)));
      if (line.trim() === "") {
        const next = lines[i + 1] ?? "";
        if (!next.startsWith(" ".repeat(indent.length + 2))) break;
        body.push("");
      } else if (isIndented) body.push(line.slice(Math.min(width, leadingSpaces(line))));
      else if (ITEM.test(line) || startsBlock(line)) break;
      else body.push(line.trim());
    }
    const nodes = blocks(body, codeBlock, depth + 1);
    const [only] = nodes;
    const isTight = only?.tagName === "P";
    list.append(el("li", {}, ...(isTight ? [...only.childNodes, ...nodes.slice(1)] : nodes)));
    if (lines[i]?.trim() === "" && ITEM.test(lines[i + 1] ?? "")) i += 1;
  }
  return [list, i];
}

const leadingSpaces = (line) => line.length - line.trimStart().length;
const startsBlock = (line) => FENCE.test(line) || HEADING.test(line) || QUOTE.test(line);

function tableAt(lines, start) {
  const cells = (line) =>
    line
      .trim()
      .replace(/^\||\|$/g, "")
      .split("|")
      .map((cell) => cell.trim());
  const head = cells(lines[start]);
  const rows = [];
  let i = start + 2;
  for (; i < lines.length && lines[i].includes("|"); i++) rows.push(cells(lines[i]));
  const row = (tag, values) =>
    el("tr", {}, ...head.map((_, j) => el(tag, {}, ...inline(values[j] ?? ""))));
  const table = el(
    "table",
    {},
    el("thead", {}, row("th", head)),
    el("tbody", {}, ...rows.map((values) => row("td", values))),
  );
  return [el("div", { class: "table", tabindex: "0" }, table), i];
}

function withBreaks(lines) {
  return lines.flatMap((line, i) => (i ? [el("br"), ...inline(line)] : inline(line)));
}

const SPANS = [
  [/(`+)(.+?)\1(?!`)/s, ([, , code]) => el("code", {}, code.trim() || code)],
  [/!?\[([^\]]*)\]\(\s*<?([^\s)>]+)>?[^)]*\)/, ([, words, to], depth) => link(words, to, depth)],
  [/<(https?:\/\/[^\s<>]+)>/, ([, to]) => link(to, to, MAX_DEPTH)],
  [
    /(\*\*|__)(?=\S)(.+?)(?<=\S)\1/s,
    ([, , words], depth) => el("strong", {}, ...inline(words, depth)),
  ],
  [
    /(?<![\w*])\*(?=[^\s*])(.+?)(?<=[^\s*])\*(?!\w)/s,
    ([, words], depth) => el("em", {}, ...inline(words, depth)),
  ],
  [
    /(?<!\w)_(?=\S)([^_]+?)(?<=\S)_(?!\w)/s,
    ([, words], depth) => el("em", {}, ...inline(words, depth)),
  ],
  [/~~(?=\S)(.+?)(?<=\S)~~/s, ([, words], depth) => el("del", {}, ...inline(words, depth))],
  [/https?:\/\/[^\s<>()]*[^\s<>().,;:!?'"]/, ([to]) => link(to, to, MAX_DEPTH)],
  [/\\([\\`*_{}[\]()#+\-.!|~>])/, ([, character]) => character],
];

/** Nodes for a line: code, links, emphasis; everything else as text. */
export function inline(text, depth = 0) {
  const nodes = [];
  while (text && depth < MAX_DEPTH) {
    let best = null;
    let make;
    for (const [pattern, maker] of SPANS) {
      const match = pattern.exec(text);
      if (match && (!best || match.index < best.index)) {
        best = match;
        make = maker;
      }
    }
    if (!best) break;
    if (best.index) nodes.push(text.slice(0, best.index));
    nodes.push(make(best, depth + 1));
    text = text.slice(best.index + best[0].length);
  }
  if (text) nodes.push(text);
  return nodes;
}

function link(words, to, depth) {
  if (!/^(https?:|mailto:)/i.test(to)) return `${words} (${to})`;
  const children = depth < MAX_DEPTH ? inline(words, MAX_DEPTH - 2) : [words];
  return el("a", { href: to, rel: "noreferrer noopener", target: "_blank" }, ...children);
}
