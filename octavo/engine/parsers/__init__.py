"""What a model wrote, taken apart: reasoning, content, tool calls.

One incremental parser (`parser.OutputParser`) is driven by a table of formats (`formats`), a row
per family of chat templates. Whole answers go through it too, in one piece, so that a stream's
deltas joined are the message that was not streamed.
"""
