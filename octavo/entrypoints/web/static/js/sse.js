// Server-sent events out of a stream of bytes, however it is cut into pieces.

/** Takes text piece by piece; gives the data of each event that is complete. */
export class EventParser {
  #rest = "";
  #data = [];

  push(text) {
    const events = [];
    const lines = (this.#rest + text).split(/\r\n|\n|\r(?=.)/s);
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === "") {
        if (this.#data.length) events.push(this.#data.join("\n"));
        this.#data = [];
      } else if (line.startsWith("data:")) {
        this.#data.push(line.slice(line[5] === " " ? 6 : 5));
      }
    }
    return events;
  }
}

/** The events of a response, until [DONE]; each is parsed JSON. */
export async function* eventsOf(response) {
  const parser = new EventParser();
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  try {
    for (;;) {
      // A connection that is lost is an end before [DONE].
      const { done, value } = await reader.read().catch((error) => {
        if (error.name === "AbortError") throw error;
        return { done: true };
      });
      if (done) return;
      for (const data of parser.push(value)) {
        if (data === "[DONE]") return;
        yield JSON.parse(data);
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
