"""`octavo generate`."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octavo.config.engine import EngineConfig
from octavo.entrypoints.cli.fetch import fetch_model
from octavo.entrypoints.cli.options import engine_options, sampling_options
from octavo.errors import RequestError

if TYPE_CHECKING:
    from octavo.contracts.messages import CompletionOutput, RequestOutput
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.input_processor import PromptType
    from octavo.entrypoints.llm import LLM

_MAX_TOKENS = 128


@engine_options
@sampling_options()
def generate(
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT", help="One or more prompts.")],
    sampling: dict[str, Any],
    engine: EngineConfig,
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--no-chat",
            help="Make each prompt a user's turn of a chat, or complete it as it is. "
            "Default: chat, where the model has a chat template.",
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON, token ids included.")
    ] = False,
) -> None:
    """Answer or complete prompts.

    Sampling is as the model's generation config says where no option does, and ends after 128
    tokens. One prompt's text is printed as it comes, several are run together.
    """
    from octavo.contracts.sampling_params import SamplingParams
    from octavo.engine.llm_engine import LLMEngine
    from octavo.entrypoints.llm import LLM

    SamplingParams(**sampling)  # a mistake is told before the model is loaded
    fetch_model(engine.model)
    with LLM.from_engine(LLMEngine.from_config(engine)) as llm:
        params = llm.get_default_sampling_params(**{"max_tokens": _MAX_TOKENS, **sampling})
        as_chat = llm.get_tokenizer().has_chat_template if chat is None else chat
        inputs = [_chat_prompt(llm, p) for p in prompts] if as_chat else list(prompts)
        if len(inputs) == 1 and params.n == 1 and not as_json:
            ended = _stream(llm, inputs[0], params)
        else:
            outputs = llm.generate(inputs, params)
            typer.echo(_to_json(prompts, outputs) if as_json else _to_text(prompts, outputs))
            ended = [c for o in outputs for c in o.outputs]
    failed = [c for c in ended if c.error is not None]
    for completion in failed:
        typer.echo(f"octavo: a request failed: {completion.error}", err=True)
    if failed:
        raise typer.Exit(1)


def _chat_prompt(llm: LLM, text: str) -> PromptType:
    if not text:
        raise RequestError("a prompt is empty; say something", param="prompt")
    chat = llm.get_tokenizer().render_chat([{"role": "user", "content": text}])
    return {"prompt": chat.text, "prompt_token_ids": chat.token_ids}


def _stream(llm: LLM, prompt: PromptType, params: SamplingParams) -> list[CompletionOutput]:
    """Print the text as it comes. Returns the last outputs."""
    ended: list[CompletionOutput] = []
    for output in llm.stream(prompt, params):
        for completion in output.outputs:
            typer.echo(completion.text, nl=False)
            if completion.finished:
                ended.append(completion)
    typer.echo()
    return ended


def _to_text(prompts: list[str], outputs: list[RequestOutput]) -> str:
    blocks = [
        f"{typer.style('> ' + prompt, bold=True)}\n{completion.text.strip()}\n"
        for prompt, output in zip(prompts, outputs)
        for completion in output.outputs
    ]
    return "\n".join(blocks).rstrip("\n")


def _to_json(prompts: list[str], outputs: list[RequestOutput]) -> str:
    """One object per prompt: what a program wants to know of its completions."""
    answers = [
        {
            "prompt": prompt,
            "prompt_tokens": len(output.prompt_token_ids),
            "cached_tokens": output.num_cached_tokens,
            "outputs": [_completion_json(c) for c in output.outputs],
        }
        for prompt, output in zip(prompts, outputs)
    ]
    return json.dumps(answers, indent=2, ensure_ascii=False)


def _completion_json(completion: CompletionOutput) -> dict[str, Any]:
    values: dict[str, Any] = {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "stop_reason": completion.stop_reason,
    }
    if completion.error is not None:
        values["error"] = completion.error
    if completion.logprobs is not None:
        values["logprobs"] = [
            {i: e.logprob if math.isfinite(e.logprob) else None for i, e in entries.items()}
            for entries in completion.logprobs
        ]
    return values
