// Conversations, kept in the browser: one entry per conversation, and their order.

import { forget, load, save } from "./storage.js";

const FORMAT = "octavo-conversations";
const MAX_TITLE = 60;
const MAX_IMPORTED = 500;
const ROLES = new Set(["user", "assistant", "tool"]);

export function newConversation(parameters = {}) {
  return {
    id: crypto.randomUUID?.() ?? String(Math.random()).slice(2),
    title: "",
    messages: [],
    parameters,
  };
}

/** The title that a conversation gets by itself. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/** All conversations, the newest first. */
export class Conversations {
  constructor() {
    const ids = parsed(load("conversations"));
    const stored = Array.isArray(ids) ? ids : [];
    this.all = stored.map((id) => cleaned(parsed(load(`conversation.${id}`)))).filter(Boolean);
  }

  find(id) {
    return this.all.find((conversation) => conversation.id === id);
  }

  /** Keep one; true if the browser did, without the tokens' probabilities where there is no room. */
  keep(conversation) {
    if (!this.find(conversation.id)) this.all.unshift(conversation);
    const name = `conversation.${conversation.id}`;
    const isKept =
      save(name, JSON.stringify(conversation)) ||
      save(name, JSON.stringify(withoutTokens(conversation)));
    return this.#keepOrder() && isKept;
  }

  remove(id) {
    this.all = this.all.filter((conversation) => conversation.id !== id);
    forget(`conversation.${id}`);
    this.#keepOrder();
  }

  #keepOrder() {
    return save("conversations", JSON.stringify(this.all.map(({ id }) => id)));
  }

  /** Everything, as the text of a file. */
  exported() {
    return JSON.stringify({ format: FORMAT, version: 1, conversations: this.all }, null, 1);
  }

  /** Take in such a text. Returns how many; throws an Error where it is not one. */
  imported(text) {
    const file = parsed(text);
    if (file?.format !== FORMAT || !Array.isArray(file.conversations)) throw new Error("format");
    const good = file.conversations.slice(0, MAX_IMPORTED).map(cleaned).filter(Boolean);
    for (const conversation of good.reverse()) {
      const { id } = newConversation();
      this.keep({ ...conversation, id });
    }
    return good.length;
  }
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return null;
  }
}

const isObject = (value) => typeof value === "object" && value !== null;
const SCALARS = {
  content: "string",
  reasoning: "string",
  finishReason: "string",
  callId: "string",
  isStopped: "boolean",
  seconds: "number",
  firstSeconds: "number",
};

/** A conversation with what belongs there and nothing else; null if it is none. */
export function cleaned(value) {
  if (!isObject(value) || typeof value.id !== "string" || typeof value.title !== "string")
    return null;
  if (!isObject(value.parameters) || !Array.isArray(value.messages)) return null;
  const messages = value.messages.map(cleanedMessage);
  if (messages.includes(null)) return null;
  const parameters = Object.entries(value.parameters).filter(([, v]) => !isObject(v));
  return {
    id: value.id,
    title: value.title,
    messages,
    parameters: Object.fromEntries(parameters),
  };
}

function cleanedMessage(value) {
  if (!isObject(value) || !ROLES.has(value.role)) return null;
  const message = { role: value.role, content: "" };
  for (const [name, type] of Object.entries(SCALARS)) {
    if (typeof value[name] === type) message[name] = value[name];
  }
  if (Array.isArray(value.toolCalls)) {
    message.toolCalls = value.toolCalls.map((call) => ({
      id: String(call?.id),
      type: "function",
      function: {
        name: String(call?.function?.name),
        arguments: String(call?.function?.arguments),
      },
    }));
  }
  if (Array.isArray(value.tokens)) {
    message.tokens = value.tokens.map((token) => ({
      token: String(token?.token),
      logprob: Number(token?.logprob),
      top: Array.isArray(token?.top) ? token.top.map((t) => [String(t?.[0]), Number(t?.[1])]) : [],
    }));
  }
  if (isObject(value.usage)) {
    const { completion_tokens: made, prompt_tokens_details: details } = value.usage;
    message.usage = {
      completion_tokens: Number(made) || 0,
      prompt_tokens_details: { cached_tokens: Number(details?.cached_tokens) || 0 },
    };
  }
  if (isObject(value.error)) {
    const { code, message: words, param } = value.error;
    message.error = { code: code ?? null, message: String(words), param: param ?? null };
  }
  return message;
}

function withoutTokens(conversation) {
  const messages = conversation.messages.map(({ tokens, ...rest }) => rest);
  return { ...conversation, messages };
}
