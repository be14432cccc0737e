// Conversations, kept in the browser: one entry per conversation, and their order.

import { forget, load, save } from "./storage.js";

const FORMAT = "octavo-conversations";
const MAX_TITLE = 60;
const MAX_IMPORTED = 500;
const ROLES = new Set(["user", "assistant", "tool"]);

export function newConversation(parameters = {}) {
  return { id: crypto.randomUUID?.() ?? String(Math.random()).slice(2), title: "", messages: [], parameters };
}

/** The title that a conversation gets by itself. */
export function titleOf(text) {
  const line = text.trim().split("\n")[0];
  return line.length > MAX_TITLE ? `${line.slice(0, MAX_TITLE - 1)}…` : line;
}

/** All conversations, the newest first. */
export class Conversations {
  constructor() {
    const ids = parsed(load("conversations")) ?? [];
    this.all = ids.map((id) => parsed(load(`conversation.${id}`))).filter(isConversation);
  }

  find(id) {
    return this.all.find((conversation) => conversation.id === id);
  }

  /** Keep one; true if the browser did, without the tokens' probabilities where there is no room. */
  keep(conversation) {
    if (!this.find(conversation.id)) this.all.unshift(conversation);
    const name = `conversation.${conversation.id}`;
    const isKept =
      save(name, JSON.stringify(conversation)) || save(name, JSON.stringify(withoutTokens(conversation)));
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
    const good = file.conversations.filter(isConversation).slice(0, MAX_IMPORTED);
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

function isConversation(value) {
  return (
    typeof value?.id === "string" &&
    typeof value.title === "string" &&
    typeof value.parameters === "object" &&
    value.parameters !== null &&
    Array.isArray(value.messages) &&
    value.messages.every((m) => ROLES.has(m?.role) && typeof (m.content ?? "") === "string")
  );
}

function withoutTokens(conversation) {
  const messages = conversation.messages.map(({ tokens, ...rest }) => rest);
  return { ...conversation, messages };
}
