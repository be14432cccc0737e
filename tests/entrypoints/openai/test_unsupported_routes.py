"""Routes that others have: refused by name, with the way to go."""

from __future__ import annotations

import re

from octavo.entrypoints.openai import admin, tokenization
from octavo.entrypoints.openai.app import ROUTES
from octavo.entrypoints.openai.keys import KeyRing
from octavo.entrypoints.openai.unsupported_routes import UNSUPPORTED_ROUTES
from tests.entrypoints.openai.harness import serving

ALL = (*ROUTES, *admin.ROUTES, *tokenization.INFO_ROUTES)

VLLM_ROUTES = """
/health /load /version /metrics /v1/models /kv_event_sources /tokenize /detokenize /tokenizer_info
/ping /invocations /v1/systemone /start_profile /stop_profile /v1/load_lora_adapter
/v1/unload_lora_adapter /v1/chat/completions /v1/chat/completions/batch /v1/completions
/v1/responses /v1/messages /v1/messages/count_tokens /cohere/v2/chat /generative_scoring
/scale_elastic_ep /is_scaling_elastic_ep /v1/chat/completions/render /v1/completions/render
/v1/messages/render /v1/responses/render /v1/chat/completions/derender /v1/completions/derender
/inference/v1/generate /v1/embeddings /v2/embed /classify /pooling /score /v1/score /rerank
/v1/rerank /v2/rerank /v1/audio/transcriptions /v1/audio/translations /v1/realtime /server_info
/reset_prefix_cache /reset_mm_cache /reset_encoder_cache /collective_rpc /sleep
/release_kv_cache_memory /wake_up /is_sleeping /pause /resume /is_paused /abort_requests
/init_weight_transfer_engine /shutdown_weight_transfer_engine /start_weight_update
/start_draft_weight_update /update_weights /finish_weight_update /update_weight_version
/weight_info /weight_checker /get_world_size /fault_tolerance/apply /fault_tolerance/status /ready
/readyz
"""


async def test_each_of_vllm_is_here_or_refused_by_name() -> None:
    here = {route.path for route in ALL}
    assert not here & set(UNSUPPORTED_ROUTES)
    async with serving() as s:
        for path in set(VLLM_ROUTES.split()) - here:
            for reply in (await s.post(path, {}), await s.get(path)):
                assert (reply.status, reply.error["code"]) == (404, "unsupported_route"), path
                assert reply.error["message"].startswith(f"there is no '{path}' here: ")


async def test_below_them_and_beside_them() -> None:
    async with serving() as s:
        for path in ("/v1/images/generations", "/v1/audio/speech", "/v1/threads" + "/r" * 1000):
            assert (await s.post(path, {})).error["code"] == "unsupported_route"
        for path in ("/v1/imagesx", "/classify2", "/v1", "/nowhere", "//classify"):
            assert (await s.post(path, {})).error["code"] is None
        assert (await s.post("/v1/messages/batches", {})).json["error"]["type"] == "not_found_error"


async def test_what_is_said_is_there() -> None:
    """The routes and flags that a refusal names."""
    there = {f"{route.method} {route.path}" for route in ALL}
    for why in UNSUPPORTED_ROUTES.values():
        assert set(re.findall(r"(?:GET|POST) /[\w/]+", why)) <= there, why


async def test_routes_that_need_a_flag() -> None:
    async with serving() as s:
        for path in ("/pause", "/server_info", "/reset_prefix_cache"):
            assert "--server-dev-mode" in (await s.post(path, {})).error["message"]
        reply = await s.get("/tokenizer_info")
        assert (reply.status, reply.error["code"]) == (404, "unsupported_route")
        assert "--enable-tokenizer-info-endpoint" in reply.error["message"]


async def test_only_with_a_key() -> None:
    async with serving(keys=KeyRing(["secret"])) as s:
        assert (await s.post("/classify", {})).status == 401
