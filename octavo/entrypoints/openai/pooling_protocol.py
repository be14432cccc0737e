"""Requests and answers of the routes that pool: embeddings, pooling, score, rerank."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from octavo.contracts.pooling_params import PoolingType
from octavo.entrypoints.openai.protocol import MAX_LABELS

# -------------------------------------------------------------------- requests


class VectorRequest(msgspec.Struct, kw_only=True):
    """What all of them have in common.

    Attributes:
        model: a served name; absent is the first one.
        pooling_type: which hidden states make a vector: LAST, MEAN, CLS (default: --pooling-type).
        add_special_tokens: begin and end texts as the tokenizer does (default true).
        truncate_prompt_tokens, truncation_side: as in a request for text, of every text.
        priority, cache_salt, request_id: as in a request for text.
        user: the caller's own label.
    """

    model: str | None = None
    pooling_type: PoolingType | None = None
    add_special_tokens: bool | None = None
    truncate_prompt_tokens: int | None = None
    truncation_side: Literal["left", "right"] | None = None
    priority: int | None = None
    cache_salt: str | None = None
    request_id: str | None = None
    user: str | None = None


class EmbeddingRequest(VectorRequest, kw_only=True):
    """POST /v1/embeddings.

    Attributes:
        input: text, token ids, or a list of either.
        messages: a chat instead, through the model's template, of which one vector is made.
        add_generation_prompt, continue_final_message, chat_template_kwargs: as in a chat, but the
            first is false by default, as is `add_special_tokens` with messages.
        encoding_format: base64 is of little-endian float32.
        dimensions: so many leading values alone, normalized after the cut.
        normalize: to length 1 (default true).
    """

    input: Any = None
    messages: list[dict[str, Any]] | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: Annotated[dict[str, Any], Meta(max_length=MAX_LABELS)] | None = None
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: int | None = None
    normalize: bool | None = None


CHAT_FIELDS = ("add_generation_prompt", "continue_final_message", "chat_template_kwargs")
"""Fields that only `messages` give a sense."""


class PoolingRequest(EmbeddingRequest, kw_only=True):
    """POST /pooling. `task` is "embed", the only one there is."""

    task: str | None = None


class ScoreRequest(VectorRequest, kw_only=True):
    """POST /score: either `text_1` and `text_2`, or the same as `queries` and `documents`; one
    first text for all second ones, or as many."""

    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None


class DocumentText(msgspec.Struct):
    """A document as an object."""

    text: str


class RerankRequest(VectorRequest, kw_only=True):
    """POST /rerank.

    Attributes:
        documents: texts, or objects with a `text`.
        top_n: only so many results (default: all).
        return_documents: give the texts, too (default true).
    """

    query: str
    documents: list[str | DocumentText]
    top_n: int | None = None
    return_documents: bool | None = None


UNSUPPORTED: dict[str, tuple[Any, ...]] = {
    "mm_processor_kwargs": ({},),
    "embed_dtype": ("float32",),
    "endianness": ("native", "little"),
    "chat_template": (),
    "max_tokens_per_doc": (),
    "instruction": (),
}

# -------------------------------------------------------------------- answers


class VectorUsage(msgspec.Struct):
    """Tokens of all texts."""

    prompt_tokens: int
    total_tokens: int


class Embedding(msgspec.Struct, kw_only=True):
    """The vector of one input, base64 where that was asked for."""

    object: str = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingList(msgspec.Struct, kw_only=True):
    """Answer to POST /v1/embeddings."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Embedding]
    usage: VectorUsage


class Pooled(msgspec.Struct, kw_only=True):
    """The vector of one input, base64 where that was asked for."""

    object: str = "pooling"
    index: int
    data: list[float] | str


class PooledList(msgspec.Struct, kw_only=True):
    """Answer to POST /pooling."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Pooled]
    usage: VectorUsage


class Score(msgspec.Struct, kw_only=True):
    """How near one pair of texts is: the cosine of their vectors, -1…1."""

    object: str = "score"
    index: int
    score: float


class ScoreList(msgspec.Struct, kw_only=True):
    """Answer to POST /score."""

    id: str
    object: str = "list"
    created: int
    model: str
    data: list[Score]
    usage: VectorUsage


class RankedDocument(msgspec.Struct, kw_only=True):
    """A document and how near it is to the query; `index` is its place in the request."""

    index: int
    relevance_score: float
    document: DocumentText | None = None


class RankedList(msgspec.Struct, kw_only=True):
    """Answer to POST /rerank: the nearest first, of equal ones that which came first."""

    id: str
    model: str
    results: list[RankedDocument]
    usage: VectorUsage
