// What went wrong, for a person.

import { el } from "./dom.js";
import { t } from "./i18n.js";

const KNOWN_ERRORS = new Set([
  "network",
  "broken_off",
  "context_length_exceeded",
  "queue_full",
  "draining",
  "engine_dead",
  "invalid_api_key",
  "model_not_found",
  "request_too_large",
  "rate_limit_exceeded",
]);

/** An error in a person's words, the server's own under it. */
export function errorNotice({ code, message, param }) {
  const words = KNOWN_ERRORS.has(code) ? t(`error.${code}`) : t("error.other");
  const exact = param ? `${param}: ${message}` : message;
  return el(
    "div",
    { class: "notice", role: "alert" },
    el("p", {}, words),
    exact &&
      el(
        "details",
        { open: !KNOWN_ERRORS.has(code) },
        el("summary", {}, t("error.exact")),
        el("p", {}, exact),
      ),
  );
}
