// The messages of a conversation as elements.

import { speedOf } from "./answer.js";
import { el, glyph } from "./dom.js";
import { number, t } from "./i18n.js";
import { renderMarkdown } from "./markdown.js";
import { errorNotice } from "./notice.js";
import { tokenView } from "./tokens.js";

/** A fenced block with its language and a button that copies it. */
export function codeBlock(code, name) {
  const copy = el(
    "button",
    { type: "button", class: "quiet small", onclick: () => copyText(code, copy) },
    t("copy"),
  );
  return el(
    "div",
    { class: "codeblock" },
    el("div", { class: "codehead" }, el("span", {}, name), copy),
    el("pre", { tabindex: "0" }, el("code", {}, code)),
  );
}

/** Where a last block's text goes on: in code, in the last item or cell. */
export function placeOfWriting(block) {
  return [...block.querySelectorAll("pre > code, li, p, td")].at(-1) ?? block;
}

async function copyText(text, button) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    return;
  }
  const before = button.textContent;
  button.textContent = t("copied");
  setTimeout(() => (button.textContent = before), 1500);
}

function action(name, key, onclick) {
  const button = el(
    "button",
    { type: "button", class: "quiet small", onclick },
    glyph(name),
    t(key),
  );
  return button;
}

/** What a person said; `edited` is called with the new text. */
export function userMessage(message, { edited }) {
  const root = el("article", { class: "message user", "aria-label": t("you") });
  const bubble = el("div", { class: "bubble" }, message.content);
  const edit = () => {
    const box = el("textarea", { rows: 3, "aria-label": t("edit"), value: message.content });
    const form = el(
      "form",
      {
        class: "editor",
        onsubmit: (event) => {
          event.preventDefault();
          edited(box.value);
        },
        onkeydown: (event) => event.key === "Escape" && show(),
      },
      box,
      el(
        "div",
        { class: "bar" },
        el("button", { class: "primary small" }, t("edit.send")),
        el("button", { type: "button", class: "small", onclick: () => show() }, t("cancel")),
      ),
    );
    root.replaceChildren(form);
    box.focus();
  };
  const show = () =>
    root.replaceChildren(bubble, el("div", { class: "bar" }, action("edit", "edit", edit)));
  show();
  return root;
}

/**
 * The model's answer. `update` redraws it while it comes; `isLast` messages can be made again, and
 * their tool calls answered.
 */
export class AnswerView {
  #showsTokens = false;

  constructor(message, { isLast, again, toolAnswered }) {
    Object.assign(this, { message, isLast, again, toolAnswered });
    this.root = el("article", { class: "message assistant", "aria-label": t("model") });
    this.reasoning = el("div", { class: "prose" });
    this.reasoningBox = el(
      "details",
      { class: "reasoning" },
      el("summary", {}, t("reasoning")),
      this.reasoning,
    );
    this.prose = el("div", { class: "prose content" });
    this.calls = el("div", {});
    this.foot = el("div", {});
    this.root.append(this.reasoningBox, this.prose, this.calls, this.foot);
    this.update(false);
  }

  update(isRunning) {
    const { message } = this;
    this.reasoningBox.hidden = !message.reasoning;
    this.reasoning.replaceChildren(...renderMarkdown(message.reasoning ?? "", codeBlock));
    const nodes = this.#showsTokens
      ? tokenView(message.tokens)
      : renderMarkdown(message.content, codeBlock);
    this.prose.replaceChildren(...nodes);
    this.prose.classList.toggle("cursor", isRunning && !message.content);
    const last = this.prose.lastElementChild;
    if (isRunning && last) placeOfWriting(last).classList.add("cursor");
    this.calls.replaceChildren(
      ...(message.toolCalls ?? []).map((c) => this.#toolCall(c, isRunning)),
    );
    this.foot.replaceChildren();
    if (message.error) this.foot.append(errorNotice(message.error));
    if (!isRunning) this.foot.append(this.#bar());
  }

  #bar() {
    const { message } = this;
    const copy = action("copy", "copy", () => copyText(message.content, copy));
    const tokens =
      message.tokens?.length &&
      el(
        "button",
        {
          type: "button",
          class: "quiet small tokens-switch",
          "aria-pressed": String(this.#showsTokens),
          onclick: () => {
            this.#showsTokens = !this.#showsTokens;
            this.update(false);
            this.foot.querySelector(".tokens-switch").focus();
          },
        },
        t("tokens.show"),
      );
    return el(
      "div",
      { class: "bar" },
      el("span", { class: "facts" }, this.#facts()),
      message.content && copy,
      tokens,
      this.isLast && action("again", "again", this.again),
    );
  }

  #facts() {
    const { message } = this;
    const facts = [];
    if (message.usage)
      facts.push(t("facts.tokens", { n: number(message.usage.completion_tokens) }));
    const speed = speedOf(message);
    if (speed) facts.push(t("facts.speed", { n: number(speed, speed < 10 ? 1 : 0) }));
    if (message.firstSeconds) facts.push(t("facts.first", { n: number(message.firstSeconds, 2) }));
    const cached = message.usage?.prompt_tokens_details?.cached_tokens;
    if (cached) facts.push(t("facts.cached", { n: number(cached) }));
    if (message.finishReason === "length") facts.push(t("facts.length"));
    if (message.isStopped) facts.push(t("facts.stopped"));
    return facts.join(" · ");
  }

  #toolCall({ id, function: { name, arguments: text } }, isRunning) {
    const box = el("textarea", {
      rows: 2,
      "aria-label": t("tool.result"),
      placeholder: t("tool.result"),
    });
    const answer =
      this.isLast &&
      !isRunning &&
      el(
        "form",
        {
          onsubmit: (event) => {
            event.preventDefault();
            this.toolAnswered(id, box.value);
          },
        },
        box,
        el("div", {}, el("button", { class: "small" }, t("tool.send"))),
      );
    return el(
      "details",
      { class: "toolcall", open: true },
      el("summary", {}, t("tool.call", { name })),
      el("pre", {}, pretty(text)),
      answer || null,
    );
  }
}

/** The result of a tool, as it was given to the model. */
export function toolMessage(message) {
  return el(
    "details",
    { class: "toolcall message" },
    el("summary", {}, t("tool.gave")),
    el("pre", {}, message.content),
  );
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
