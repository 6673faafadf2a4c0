"""Images in user messages: given to a run, sent to one on Temporal, stored, and shown to the model."""

from collections.abc import Sequence
from typing import Any

import pytest
from support.doubles import echo
from support.drivers import Driver
from support.questions import ask_user
from support.temporal_runs import Temporal, pending, result
from support.transcripts import asks_for, call

from standfast import Agent, Image, InputError, Message, run
from standfast.messages import read_images
from standfast.temporal import start_agent
from standfast.testing import ScriptedModel

PICTURE = Image(data=b"\x89PNG", media_type="image/png")
LINK = {"url": "https://example.com/cat.png"}


def shown(messages: Sequence[Message]) -> list[tuple[str, list[str]]]:
    return [(m.content, [image.address for image in m.images or ()]) for m in messages if m.role == "user"]


async def test_every_message_of_a_session_may_have_images(driver: Driver) -> None:
    model = ScriptedModel([asks_for(call("echo", "c1", text="x")), "a cat", "a dog"])
    agent = Agent("a", tools=[echo])
    await driver.run(agent, model, message="What is it?", images=[PICTURE, LINK])
    ended = await driver.run(agent, model, message="And this?", images=[LINK])
    said = [("What is it?", [PICTURE.address, LINK["url"]]), ("And this?", [LINK["url"]])]
    assert shown(ended.messages) == said
    assert [shown(seen.messages) for seen in model.calls] == [said[:1], said[:1], said]


async def test_a_run_on_temporal_is_shown_images_later(temporal: Temporal) -> None:
    """By an update, a raw signal, and the signal that starts a run or reaches the one that is there."""
    agent = Agent("a", tools=[ask_user])
    model = ScriptedModel([asks_for(call("ask_user", "c1", question="?")), "seen"])
    async with temporal.worker(agent, llm=model):
        handle = await temporal.start(agent)
        await pending(handle)
        await temporal.people.message(handle.id, "one", images=[PICTURE])
        await handle.signal("message", {"text": "two", "images": [LINK]})
        session = temporal.session()
        await start_agent(
            temporal.client, agent, message="three", images=[LINK], session_id=session, task_queue=temporal.name,
            if_running="message",
        )  # fmt: skip
        await handle.execute_update("answer", {"text": "go on"})
        await result(handle)
    said = [("go", []), ("one", [PICTURE.address]), ("two", [LINK["url"]]), ("three", [LINK["url"]])]
    assert shown(await temporal.messages()) == shown(model.calls[-1].messages) == said


WRONG: list[tuple[Any, str]] = [
    ("cat.png", "images must be a list, got str"),
    ([{"url": "u", "data": "aaaa"}], r"images\[0\] is not an image: value: Value error, an image has either a url, or"),
    ([LINK, {"data": "a", "media_type": "image/png"}], r"images\[1\] is not an image: data: .*base64"),
    ([{"data": "no base64!", "media_type": "image/png"}], r"images\[0\] is not an image: data: "),
    ([{"url": "x" * 2_000_000}], "images: 2,000,000 bytes, more than 1,048,576; give their urls, or make them smaller"),
]


@pytest.mark.parametrize(("wrong", "says"), WRONG, ids=[text[:30] for _, text in WRONG])
def test_a_value_that_is_not_an_image_is_refused(wrong: Any, says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_images(wrong, 1_048_576)


async def test_a_run_refuses_what_is_not_an_image(driver: Driver) -> None:
    with pytest.raises(InputError, match=r"images\[0\] is not an image"):
        await driver.run(Agent("a"), ScriptedModel([]), images=[{"address": "cat.png"}])


async def test_images_without_a_message_are_refused(temporal: Temporal) -> None:
    with pytest.raises(InputError, match="images= go with a message="):
        await run(Agent("a"), images=[PICTURE], llm=ScriptedModel([]))
    with pytest.raises(InputError, match="images go with a message"):
        await temporal.start("a", None, images=[PICTURE])


@pytest.mark.parametrize("data", [b"\x89PNG", bytearray(b"\x89PNG"), memoryview(b"\x89PNG"), "iVBORw=="])
def test_an_image_takes_bytes_and_base64(data: Any) -> None:
    assert Image(data=data, media_type="image/png").data == "iVBORw=="


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": ""}, {"url": "https://x/\ud800"}, {"url": "https://x/\0"}, {"data": "", "media_type": "image/png"},
        {"data": b"x", "media_type": "text/html"}, {"data": b"x"}, {},
    ],
    ids=str,
)  # fmt: skip
def test_an_image_that_could_be_neither_kept_nor_sent_is_refused(wrong: Any) -> None:
    with pytest.raises(ValueError, match="Image"):
        Image(**wrong)


async def test_images_that_no_signal_carries_are_refused_when_a_run_is_told_of_them(temporal: Temporal) -> None:
    large = Image(data=b"x" * 300_000, media_type="image/png")
    with pytest.raises(InputError, match=r"message, with its images: .* more than 262,144"):
        await start_agent(temporal.client, "a", message="hi", images=[large], if_running="message")
