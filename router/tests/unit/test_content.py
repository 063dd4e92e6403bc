"""Media in messages: what an engine would fetch, or find under a name, is refused or dropped."""

from typing import Any

import pytest

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError
from pdd_router.flow.legs import decode_body, prefill_body
from pdd_router.openai.request import ClientRequest, Endpoint, parse_request

TEXT_TYPES = ["text", "input_text", "output_text", "refusal", "thinking"]
REMOTE = "http://169.254.169.254/latest"
PNG = "data:image/png;base64,AAAA"


def chat(*parts: dict[str, Any]) -> ClientRequest:
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return parse_request(Endpoint.CHAT, body, (None, None), Limits())


@pytest.mark.parametrize("kind", TEXT_TYPES)
@pytest.mark.parametrize("media", [{"image_url": REMOTE}, {"image_url": {"url": REMOTE}}, {"video_url": REMOTE}])
def test_a_part_that_says_it_is_text_names_nothing_to_fetch(kind: str, media: dict[str, Any]) -> None:
    texts: list[dict[str, Any]] = [{}, {kind: "see"}]
    for text in texts:
        with pytest.raises(BadRequestError) as refused:
            chat({"type": kind, **text, **media})
        (key,) = media
        assert (refused.value.code, refused.value.param) == ("remote_media", f"messages[0].content[0].{key}")
    part = {"type": kind, kind: f"see {REMOTE}"}
    assert chat(part).body["messages"] == [{"role": "user", "content": [part]}], "control: a text may say so"


@pytest.mark.parametrize("key", ["image_url", "input_image", "image_embeds", "input_audio", "video_url", "image_pil"])
def test_media_that_are_not_there_are_refused(key: str) -> None:
    kinds: list[dict[str, Any]] = [{}, {"type": key}, {"type": ["text"]}]
    for kind in kinds:
        with pytest.raises(BadRequestError) as refused:
            chat({**kind, key: None, "uuid": "invoice-7"})
        assert (refused.value.code, refused.value.param) == ("null_media", f"messages[0].content[0].{key}")
    for control in ({"type": "text", "text": "see", key: None}, {"image_url": PNG, "video_url": None}):
        assert chat(control).model, "control: null is what is not there"


def test_null_url_of_media_is_no_data_url() -> None:
    with pytest.raises(BadRequestError) as refused:
        chat({"type": "image_url", "image_url": {"url": None}, "uuid": "invoice-7"})
    assert refused.value.code == "remote_media"


def test_names_that_clients_give_to_media_reach_no_engine() -> None:
    """vLLM would find the media of another tenant under one. The caller's object stays as it is."""
    image: dict[str, Any] = {"type": "image_url", "image_url": {"url": PNG}}
    parts = [{"type": "text", "text": "see"}, {**image, "uuid": "invoice-7"}, {**image, "uuid": None}]
    request = chat(*parts)
    for leg in (prefill_body, decode_body):
        sent = [{"type": "text", "text": "see"}, image, image]
        assert leg(request, salt="s", params=None)["messages"] == [{"role": "user", "content": sent}]
    assert parts[1]["uuid"] == "invoice-7"


def test_messages_where_none_belong_are_not_understood() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "prompt": "x",
        "messages": [1, {"content": 1}, {"content": [1, {"uuid": "a"}]}],
    }
    request = parse_request(Endpoint.COMPLETIONS, body, (None, None), Limits())
    assert request.body["messages"] == [1, {"content": 1}, {"content": [1, {}]}]
