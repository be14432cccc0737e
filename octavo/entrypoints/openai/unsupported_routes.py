"""Routes of other servers that are none here: who asks for one hears why, and what to do."""

from __future__ import annotations

from octavo.entrypoints.openai import admin
from octavo.entrypoints.openai.errors import APIError
from octavo.errors import shown

_NO_AUDIO = "models take and give text alone; there is no audio"
_NO_IMAGES = "models take and give text alone; there are no images"
_NO_VIDEO = "models take and give text alone; there are no videos"
_NO_LORA = "LoRA adapters are not supported; merge them into the model"
_NO_SLEEP = "an engine does not sleep; POST /pause holds requests back, with --server-dev-mode"
_NO_TRAINING = "weights are not changed while they are served; start the server anew"
_ONE_PROCESS = "a model runs in one process; start a server per replica"
_NO_CACHE = "there is no such cache, as models take text alone; POST /reset_prefix_cache"
_NO_PROFILER = (
    "there is no profiler; GET /v1/engine/state and `octavo bench step` tell where time goes"
)
_NO_ASSISTANTS = "conversations are kept by POST /v1/responses, with previous_response_id"
_CHAT = "use POST /v1/chat/completions"
_COMPLETION = "use POST /v1/completions"

UNSUPPORTED_ROUTES: dict[str, str] = {
    # vLLM's
    "/classify": "no served model has a classification head; POST /v1/score and /v1/rerank compare "
    "texts, and structured_outputs with a choice lets a model choose",
    "/generative_scoring": "use POST /v1/completions with logprobs and logprob_token_ids",
    "/v1/systemone": "use POST /v1/chat/completions with structured_outputs",
    "/v2/embed": "use POST /v1/embeddings",
    "/cohere": _CHAT,
    "/v1/chat/completions/batch": "send the chats as requests of their own, which run together, or "
    "use POST /v1/batches",
    "/kv_event_sources": "KV blocks are not announced; GET /v1/engine/state shows them",
    "/start_profile": _NO_PROFILER,
    "/stop_profile": _NO_PROFILER,
    "/v1/load_lora_adapter": _NO_LORA,
    "/v1/unload_lora_adapter": _NO_LORA,
    "/sleep": _NO_SLEEP,
    "/wake_up": _NO_SLEEP,
    "/is_sleeping": _NO_SLEEP,
    "/release_kv_cache_memory": _NO_SLEEP,
    "/reset_mm_cache": _NO_CACHE,
    "/reset_encoder_cache": _NO_CACHE,
    "/collective_rpc": _ONE_PROCESS,
    "/get_world_size": _ONE_PROCESS,
    "/scale_elastic_ep": _ONE_PROCESS,
    "/is_scaling_elastic_ep": _ONE_PROCESS,
    "/fault_tolerance": _ONE_PROCESS,
    "/ready": "use GET /health",
    "/readyz": "use GET /health",
    **dict.fromkeys(
        (
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
            "/update_weights",
            "/finish_weight_update",
            "/update_weight_version",
            "/weight_info",
            "/weight_checker",
        ),
        _NO_TRAINING,
    ),
    # OpenAI's
    "/v1/audio": _NO_AUDIO,
    "/v1/realtime": _NO_AUDIO,
    "/v1/images": _NO_IMAGES,
    "/v1/videos": _NO_VIDEO,
    "/v1/moderations": "no served model judges texts; structured_outputs with a choice lets it",
    "/v1/fine_tuning": _NO_TRAINING,
    "/v1/evals": "there are no evaluations; POST /v1/batches runs many requests",
    "/v1/uploads": "POST /v1/files takes a file at once",
    "/v1/vector_stores": "there is no store of vectors; POST /v1/embeddings makes them",
    "/v1/assistants": _NO_ASSISTANTS,
    "/v1/threads": _NO_ASSISTANTS,
    "/v1/conversations": _NO_ASSISTANTS,
    "/v1/containers": "nothing is run on the server",
    # Anthropic's
    "/v1/complete": "use POST /v1/messages",
    "/v1/messages/batches": "use POST /v1/batches",
    # SGLang's, llama.cpp's, Ollama's and TGI's
    "/generate": _COMPLETION,
    "/generate_stream": _COMPLETION,
    "/completion": _COMPLETION,
    "/infill": _COMPLETION,
    "/encode": "use POST /pooling",
    "/embedding": "use POST /v1/embeddings",
    "/apply-template": "use POST /v1/chat/completions/render",
    "/props": "use GET /v1/models",
    "/slots": "use GET /v1/engine/state",
    "/flush_cache": "use POST /reset_prefix_cache, with --server-dev-mode",
    "/health_generate": "use GET /health",
    "/api/chat": _CHAT,
    "/api/generate": _COMPLETION,
    "/api/tags": "use GET /v1/models",
    "/api/embed": "use POST /v1/embeddings",
}
"""Path, which stands for those below it too → why it is none, or what to use instead."""
_MOST_STEPS = max(len(path.split("/")) for path in UNSUPPORTED_ROUTES)

_DEV_PATHS = frozenset(route.path for route in admin.ROUTES)


def no_such_route(path: str) -> APIError:
    """The answer for a path that no route has."""
    if path in _DEV_PATHS:
        why = "start the server with --server-dev-mode"
    elif path == "/tokenizer_info":
        why = "start the server with --enable-tokenizer-info-endpoint"
    else:
        why = _why_unsupported(path)
    message = f"there is no {shown(path)} here"
    if not why:
        return APIError(404, message)
    return APIError(404, f"{message}: {why}", code="unsupported_route")


def _why_unsupported(path: str) -> str:
    """Of the longest beginning that is in the table; "" where there is none."""
    steps = path.split("/", _MOST_STEPS)[:_MOST_STEPS]  # a path may have many thousands
    while steps:
        if why := UNSUPPORTED_ROUTES.get("/".join(steps)):
            return why
        steps.pop()
    return ""
