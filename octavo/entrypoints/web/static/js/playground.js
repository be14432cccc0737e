// The playground: conversations on the left, the talk, parameters on the right.

import { emptyAnswer, streamAnswer, wireMessages } from "./answer.js";
import { models } from "./api.js";
import { askForChange, conversationItems } from "./conversation_list.js";
import { Conversations, newConversation, titleOf } from "./conversations.js";
import { el, glyph } from "./dom.js";
import { number, t } from "./i18n.js";
import { errorNotice } from "./notice.js";
import { ParameterForm, bodyOf } from "./parameters.js";
import { mountShell } from "./shell.js";
import { load, save } from "./storage.js";
import { AnswerView, toolMessage, userMessage } from "./transcript.js";

const SUGGESTIONS = ["one", "two", "three"];
const $ = (id) => document.getElementById(id);

const store = new Conversations();
let current = store.all[0] ?? newConversation();
let running = null; // { controller, view } while an answer comes
let served = [];

const modelPicker = el("select", {
  id: "model",
  "data-t-label": "model.picker",
  onchange: modelChanged,
});
const sideButton = (side, icon) =>
  el(
    "button",
    {
      type: "button",
      class: "icon quiet only-narrow",
      "aria-expanded": "false",
      "aria-controls": side,
      "data-t-label": side,
      onclick: (event) => toggleSide(side, event.currentTarget),
    },
    glyph(icon),
  );
mountShell({
  before: [sideButton("conversations", "list")],
  extra: [modelPicker, sideButton("parameters", "sliders")],
});
const form = new ParameterForm($("parameters"), parametersChanged);

// -------------------------------------------------------------------- the model

async function loadModels() {
  try {
    served = await models();
  } catch (error) {
    $("transcript").replaceChildren(errorNotice(error));
    return;
  }
  modelPicker.replaceChildren(...served.map(({ id }) => el("option", { value: id }, id)));
  const wish = load("model");
  if (served.some(({ id }) => id === wish)) modelPicker.value = wish;
  modelChanged();
}

function modelChanged() {
  save("model", modelPicker.value);
  form.maxTokens = served.find(({ id }) => id === modelPicker.value)?.max_model_len ?? null;
  form.validate();
}

// -------------------------------------------------------------------- conversations

function open(conversation) {
  stop();
  current = conversation;
  form.show(current.parameters);
  showList();
  showTranscript();
}

function showList() {
  $("conversation-list").replaceChildren(
    ...conversationItems(store.all, current, {
      opened: (conversation) => {
        open(conversation);
        closeSides();
      },
      managed: manage,
    }),
  );
}

async function manage(conversation) {
  const change = await askForChange(conversation);
  if (change.isDeleted) {
    store.remove(conversation.id);
    if (conversation === current) return open(store.all[0] ?? newConversation());
  } else if (change.title !== undefined) {
    conversation.title = change.title;
    store.keep(conversation);
  }
  showList();
}

function exportAll() {
  const file = new Blob([store.exported()], { type: "application/json" });
  const link = el("a", {
    href: URL.createObjectURL(file),
    download: "octavo-conversations.json",
  });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

async function importFile(file) {
  try {
    const count = store.imported(await file.text());
    say(t("import.done", { n: number(count) }));
    if (count) open(store.all[0]);
  } catch {
    say(t("import.wrong"), true);
  }
}

function keep() {
  if (!store.keep(current)) say(t("storage.full"));
}

function parametersChanged() {
  current.parameters = { ...form.values };
  if (current.messages.length) store.keep(current);
}

// -------------------------------------------------------------------- the talk

/** Tell a screen reader; and everyone, where it is a problem. */
function say(words, isProblem = false) {
  $("status").textContent = words;
  if (isProblem) $("transcript").append(errorNotice({ code: "other", message: words }));
}

function showTranscript() {
  const { messages } = current;
  if (!messages.length) {
    $("transcript").replaceChildren(welcome());
    return;
  }
  const last = messages.findLastIndex(({ role }) => role === "assistant");
  const isAnswered = messages.slice(last + 1).some(({ role }) => role === "user");
  $("transcript").replaceChildren(
    ...messages.map((message, i) => {
      if (message.role === "user") {
        return userMessage(message, { edited: (text) => ask(text, messages.slice(0, i)) });
      }
      if (message.role === "tool") return toolMessage(message);
      return answerView(message, i === last && !isAnswered).root;
    }),
  );
  scrollDown(true);
}

function answerView(message, isLast) {
  return new AnswerView(message, {
    isLast,
    again: () => {
      const end = current.messages.indexOf(message);
      current.messages = current.messages.slice(0, end);
      answer();
    },
    toolAnswered: (callId, content) => {
      current.messages.push({ role: "tool", callId, content });
      const answered = new Set(current.messages.map((m) => m.callId));
      if (message.toolCalls.every(({ id }) => answered.has(id))) answer();
      else showTranscript();
    },
  });
}

function welcome() {
  return el(
    "div",
    { class: "welcome" },
    el("h2", {}, t("welcome")),
    el("p", { class: "soft" }, t("welcome.more")),
    el(
      "div",
      { class: "suggestions" },
      SUGGESTIONS.map((name) => {
        const words = t(`suggestion.${name}`);
        return el("button", { type: "button", onclick: () => ask(words) }, words);
      }),
    ),
  );
}

function ask(text, before = current.messages) {
  if (!text.trim()) return;
  stop();
  current.messages = [...before, { role: "user", content: text }];
  current.title ||= titleOf(text);
  answer();
}

/** Have the model go on from the messages so far. */
async function answer() {
  stop();
  form.validate();
  if (!form.isValid) {
    showTranscript();
    say(t("problem.parameters"), true);
    toggleSide("parameters", null, true);
    return;
  }
  const conversation = current;
  const body = {
    model: modelPicker.value || undefined,
    messages: wireMessages(form.values.system ?? "", conversation.messages),
    ...bodyOf(form.values),
  };
  const message = emptyAnswer();
  conversation.messages.push(message);
  conversation.parameters = { ...form.values };
  keep();
  showList();
  showTranscript();
  const view = answerView(message, true);
  $("transcript").lastElementChild.replaceWith(view.root);
  view.update(true);
  const run = (running = { controller: new AbortController(), view });
  showSend();
  // What had the focus (an editor, "Again") may be gone: the next thing to do is to stop.
  if (document.activeElement === document.body) $("send").focus();
  say(t("status.answering"));
  let isDrawing = false;
  const changed = () => {
    if (isDrawing) return;
    isDrawing = true;
    requestAnimationFrame(() => {
      isDrawing = false;
      if (running !== run) return;
      view.update(true);
      scrollDown(false);
    });
  };
  try {
    await streamAnswer(body, message, { signal: run.controller.signal, changed });
    say(t("status.done", { n: number(message.usage?.completion_tokens ?? 0) }));
  } catch (error) {
    if (error.name === "AbortError") {
      message.isStopped = true;
      say(t("status.stopped"));
    } else {
      message.error = {
        code: error.code ?? null,
        message: error.message,
        param: error.param ?? null,
      };
    }
  }
  if (running === run) {
    running = null;
    showSend();
  }
  if (store.find(conversation.id)) store.keep(conversation); // else it was deleted meanwhile
  view.update(false);
  if (conversation === current) scrollDown(false);
}

function stop() {
  running?.controller.abort();
  running = null;
  showSend();
}

/** Follow the text as long as its end was in sight. */
function scrollDown(always) {
  const box = $("transcript");
  const isNear = box.scrollHeight - box.scrollTop - box.clientHeight < 120;
  if (always || isNear) box.scrollTop = box.scrollHeight;
}

// -------------------------------------------------------------------- the composer and the sides

function showSend() {
  const name = running ? "stop" : "send";
  const button = $("send");
  if (button.dataset.does !== name) button.replaceChildren(glyph(name));
  button.dataset.does = name;
  button.setAttribute("aria-label", t(name));
  button.title = t(name);
}

function fitPrompt() {
  const box = $("prompt");
  box.style.height = "auto";
  box.style.height = `${box.scrollHeight}px`;
}

function send() {
  const box = $("prompt");
  const text = box.value;
  if (!text.trim()) return;
  box.value = "";
  fitPrompt();
  ask(text);
}

function toggleSide(side, button = null, isOpen = !$(side).classList.contains("open")) {
  closeSides();
  $(side).classList.toggle("open", isOpen);
  button?.setAttribute("aria-expanded", String(isOpen));
  if (isOpen && button) $(side).querySelector("button, input, textarea")?.focus();
}

function closeSides() {
  for (const side of document.querySelectorAll(".side")) side.classList.remove("open");
  for (const button of document.querySelectorAll("[aria-expanded]")) {
    button.setAttribute("aria-expanded", "false");
  }
}

$("composer").addEventListener("submit", (event) => {
  event.preventDefault();
  if (running) stop();
  else send();
});
$("prompt").addEventListener("input", fitPrompt);
$("prompt").addEventListener("keydown", (event) => {
  // While an input method composes, Enter chooses its words.
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => {
  if (event.key !== "Escape" || document.querySelector("dialog[open]")) return;
  if (running) stop();
  document.querySelector('[aria-expanded="true"]')?.focus();
  closeSides();
});
$("transcript").addEventListener("pointerdown", closeSides);
$("new").addEventListener("click", () => {
  open(newConversation({ ...form.values }));
  closeSides();
  $("prompt").focus();
});
$("export").addEventListener("click", exportAll);
$("import").addEventListener("click", () => $("import-file").click());
$("import-file").addEventListener("change", (event) => {
  const [file] = event.target.files;
  event.target.value = "";
  if (file) importFile(file);
});
$("reset").addEventListener("click", () => {
  form.show({});
  parametersChanged();
});
document.addEventListener("languagechange", () => {
  if (!running) showTranscript();
  showList();
  showSend();
  form.validate();
});
document.addEventListener("keychange", async () => {
  if (!running) showTranscript();
  await loadModels();
});

open(current);
await loadModels();
document.body.dataset.ready = "";
