// The server's API: addresses, the key, errors.

import { forget, load, save } from "./storage.js";

/** An answer that is no success. `code` is the server's word, "network" where nothing came. */
export class ApiError extends Error {
  constructor(message, { status = 0, code = null, param = null } = {}) {
    super(message);
    Object.assign(this, { status, code, param });
  }
}

export const key = () => load("key", sessionStorage) ?? load("key") ?? "";

/** Keep the key in this tab, or in this browser too. */
export function keepKey(value, inBrowser) {
  forget("key");
  forget("key", sessionStorage);
  if (value) save("key", value, inBrowser ? localStorage : sessionStorage);
}

let asking = null;
let askForKey = async () => false;

/** Who asks a person for the key: a function that resolves to whether there is a new one. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** Fetch a path of the server. Asks for the key where it is missing or wrong. Throws ApiError. */
export async function call(path, { body, signal } = {}) {
  for (;;) {
    const sent = key();
    const headers = sent ? { authorization: `Bearer ${sent}` } : {};
    if (body !== undefined) headers["content-type"] = "application/json";
    let response;
    try {
      response = await fetch(new URL(path, document.baseURI), {
        method: body === undefined ? "GET" : "POST",
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError(error.message, { code: "network" });
    }
    if (response.ok) return response;
    if (response.status === 401) {
      if (key() !== sent) continue; // another call was given a new one meanwhile
      asking ??= askForKey().finally(() => (asking = null));
      if (await asking) continue;
    }
    throw await errorOf(response);
  }
}

async function errorOf(response) {
  const { status } = response;
  try {
    const { error } = await response.json();
    return new ApiError(error.message, { status, code: error.code, param: error.param });
  } catch {
    return new ApiError(response.statusText, { status });
  }
}

/** The error event of a stream, as an error. */
export function streamError({ message, code, param }) {
  return new ApiError(message, { code, param });
}

export async function models() {
  return (await (await call("v1/models")).json()).data;
}
