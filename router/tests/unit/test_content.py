"""Media in messages: what an engine would fetch, or find under a name, is refused or dropped."""

from typing import Any

import pytest

from pdd_router.config import Limits
from pdd_router.errors import BadRequestError
from pdd_router.openai.request import ClientRequest, Endpoint, parse_request

TEXT_TYPES = ["text", "input_text", "output_text", "refusal", "thinking"]
REMOTE = "http://169.254.169.254/latest"
PNG = "data:image/png;base64,AAAA"


def chat(*parts: dict[str, Any]) -> ClientRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": list(parts)}]}
    return parse_request(Endpoint.CHAT, body, (None, None), Limits())


@pytest.mark.parametrize("kind", TEXT_TYPES)
@pytest.mark.parametrize("media", [{"image_url": REMOTE}, {"image_url": {"url": REMOTE}}, {"video_url": REMOTE}])
def test_a_part_that_says_it_is_text_names_nothing_to_fetch(kind: str, media: dict[str, Any]) -> None:
    for text in ({}, {kind: "see"}):
        with pytest.raises(BadRequestError) as refused:
            chat({"type": kind, **text, **media})
        (key,) = media
        assert (refused.value.code, refused.value.param) == ("remote_media", f"messages[0].content[0].{key}")
    part = {"type": kind, kind: f"see {REMOTE}"}
    assert chat(part).body["messages"] == [{"role": "user", "content": [part]}], "control: in the text itself it is text"
