// The list of conversations, and what can be done with one.

import { el, glyph } from "./dom.js";
import { t } from "./i18n.js";
import { confirmed } from "./shell.js";

/** The items of the list; `opened` and `managed` are called with a conversation. */
export function conversationItems(all, current, { opened, managed }) {
  return all.map((conversation) => {
    const isCurrent = conversation.id === current.id;
    const title = conversation.title || t("conversations.untitled");
    return el(
      "li",
      { class: isCurrent ? "conversation current" : "conversation" },
      el(
        "button",
        {
          type: "button",
          class: "name",
          title,
          "aria-current": isCurrent && "true",
          onclick: () => opened(conversation),
        },
        el("span", {}, title),
      ),
      el(
        "button",
        {
          type: "button",
          class: "more quiet small icon",
          "aria-label": t("conversations.more"),
          onclick: () => managed(conversation),
        },
        glyph("more"),
      ),
    );
  });
}

/** Ask for another title, or whether to delete it. Resolves to {title}, {isDeleted} or {}. */
export async function askForChange(conversation) {
  const title = el("input", { id: "rename", value: conversation.title, maxlength: 200 });
  const remove = { type: "button", class: "quiet", onclick: () => dialog.close("delete") };
  const dialog = el(
    "dialog",
    { "aria-labelledby": "manage-title" },
    el("h2", { id: "manage-title" }, t("conversations.manage")),
    el(
      "form",
      { method: "dialog" },
      el("div", {}, el("label", { for: "rename" }, t("conversations.title")), title),
      el(
        "div",
        { class: "row" },
        el("button", remove, t("delete")),
        el("button", { type: "button", onclick: () => dialog.close("") }, t("cancel")),
        el("button", { class: "primary", value: "rename" }, t("rename")),
      ),
    ),
  );
  document.body.append(dialog);
  dialog.showModal();
  title.select();
  const wish = await new Promise((resolve) =>
    dialog.addEventListener("close", () => resolve(dialog.returnValue)),
  );
  dialog.remove();
  if (wish === "rename") return { title: title.value.trim() };
  if (wish !== "delete") return {};
  const question = t("conversations.reallyDelete", { title: conversation.title });
  return (await confirmed(question, t("delete"))) ? { isDeleted: true } : {};
}
