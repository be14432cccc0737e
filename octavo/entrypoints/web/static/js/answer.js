// One answer of the model: the request's body, and the message that its events make.

import { ApiError, call, streamError } from "./api.js";
import { eventsOf } from "./sse.js";

/** The messages as the server wants them. */
export function wireMessages(system, messages) {
  const wire = system.trim() ? [{ role: "system", content: system }] : [];
  for (const message of messages) {
    if (message.role === "assistant") {
      if (message.error && !message.content && !message.toolCalls?.length) continue;
      const calls = message.toolCalls?.length && { tool_calls: message.toolCalls };
      wire.push({
        role: "assistant",
        content: message.content || (calls ? null : ""),
        ...calls,
      });
    } else if (message.role === "tool") {
      wire.push({ role: "tool", tool_call_id: message.callId, content: message.content });
    } else {
      wire.push({ role: "user", content: message.content });
    }
  }
  return wire;
}

/** The message that one begins with. */
export const emptyAnswer = () => ({ role: "assistant", content: "" });

/** Stream an answer into `message`; `changed` is called after every event. Throws ApiError. */
export async function streamAnswer(body, message, { signal, changed }) {
  const began = performance.now();
  let first = null;
  const response = await call("v1/chat/completions", {
    body: { ...body, stream: true, stream_options: { include_usage: true } },
    signal,
  });
  for await (const event of eventsOf(response)) {
    if (event.error) throw streamError(event.error);
    const [choice] = event.choices ?? [];
    if (choice) {
      if (first === null && saysSomething(choice)) first = performance.now();
      addChoice(message, choice);
    }
    if (event.usage) message.usage = event.usage;
    message.seconds = (performance.now() - began) / 1000;
    if (first !== null) message.firstSeconds = (first - began) / 1000;
    changed();
  }
  if (!message.finishReason) throw new ApiError("", { code: "broken_off" });
}

function saysSomething({ delta, logprobs }) {
  return delta.content || delta.reasoning || delta.tool_calls || logprobs?.content?.length;
}

/** Take one delta in. */
export function addChoice(message, { delta, logprobs, finish_reason: reason }) {
  if (delta.content) message.content += delta.content;
  if (delta.reasoning) message.reasoning = (message.reasoning ?? "") + delta.reasoning;
  for (const piece of delta.tool_calls ?? []) {
    message.toolCalls ??= [];
    const known = message.toolCalls[piece.index];
    if (!known) {
      const { name = "", arguments: text = "" } = piece.function ?? {};
      message.toolCalls[piece.index] = {
        id: piece.id,
        type: "function",
        function: { name, arguments: text },
      };
    } else {
      known.function.arguments += piece.function?.arguments ?? "";
    }
  }
  for (const { token, logprob, top_logprobs: top } of logprobs?.content ?? []) {
    message.tokens ??= [];
    message.tokens.push({ token, logprob, top: top.map((t) => [t.token, t.logprob]) });
  }
  if (reason) message.finishReason = reason;
}

/** Tokens per second after the first one, or null where that says nothing. */
export function speedOf({ usage, seconds, firstSeconds }) {
  const rest = (usage?.completion_tokens ?? 0) - 1;
  const span = seconds - firstSeconds;
  return rest > 0 && span > 0 ? rest / span : null;
}
