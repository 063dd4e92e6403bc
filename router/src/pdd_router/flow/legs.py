"""What each leg of a turn sends: copies derived from the client's request, which itself never changes. Pure.

Both legs must render the same prompt, token for token: prefill's KV is useless to decode otherwise. So the prefill leg
drops only what concerns the output.
"""

from __future__ import annotations

from pdd_router.flow.kv_params import KEY
from pdd_router.openai.request import ClientRequest, Endpoint
from pdd_router.openai.strict_json import JsonObject

# What concerns the answer only. Prefill's one token is thrown away.
_OUTPUT_FIELDS = frozenset(
    {
        "stream_options", "min_tokens", "logprobs", "top_logprobs", "prompt_logprobs", "logprob_token_ids", "echo",
        "return_token_ids", "return_tokens_as_token_ids", "stop", "stop_token_ids", "ignore_eos", "best_of",
        "use_beam_search", "stream_interval", "suffix",
    }
)  # fmt: skip


def prefill_body(request: ClientRequest, *, salt: str, params: JsonObject | None) -> JsonObject:
    body = {key: value for key, value in request.body.items() if key not in _OUTPUT_FIELDS}
    body["stream"] = False
    # Never both names: some engines refuse that. The new one is known for chats only.
    chat = request.endpoint is Endpoint.CHAT
    name = "max_completion_tokens" if chat and "max_completion_tokens" in body else "max_tokens"
    for either in ("max_tokens", "max_completion_tokens"):
        body.pop(either, None)
    body[name] = 1
    if "n" in body:
        body["n"] = 1
    return _owned(body, salt, params)


def decode_body(request: ClientRequest, *, salt: str, params: JsonObject | None) -> JsonObject:
    return _owned(dict(request.body), salt, params)


def introduction_body(model: str, params: JsonObject) -> JsonObject:
    return {"model": model, "prompt": ".", "max_tokens": 1, "stream": False, KEY: params}


def _owned(body: JsonObject, salt: str, params: JsonObject | None) -> JsonObject:
    body["cache_salt"] = salt
    if params is not None:
        body[KEY] = params
    return body
