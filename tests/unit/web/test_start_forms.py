"""Forms are made from input schemas, and typed values are read as those types."""

from datetime import date
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field, SecretStr

from standfast import Approval, InputError, pipeline
from standfast.web.page.forms import form_of


class Size(Enum):
    small = "S"
    large = "L"


class Author(BaseModel):
    name: str
    born: date | None = None


class Node(BaseModel):
    value: int
    children: list["Node"] = []


class Article(BaseModel):
    """What is to be written."""

    title: str = Field(description="In one line.")
    words: Annotated[int, Field(ge=100, le=5_000)] = 800
    ratio: float | None = None
    tone: Literal["dry", "warm"] = "dry"
    size: Size
    draft: bool = True
    tags: list[str] = []
    author: Author
    price: Decimal | None = None
    rules: dict[str, int] = {}
    key: SecretStr | None = None
    sure: bool | None = None
    tree: Node | None = None


FORM = form_of(pipeline("write", input=Article).step("ok", approval=Approval(message="?")).build().input_schema)


def read(**typed: str) -> Any:
    return FORM.read({f"input.{name.replace('__', '.')}": text for name, text in typed.items()})


def test_each_type_has_its_control() -> None:
    controls = {field.key: field.control for field in FORM.fields}
    assert controls == {
        "title": "text", "words": "number", "ratio": "number", "tone": "select", "size": "select", "draft": "checkbox",
        "tags": "lines", "author": "group", "price": "text", "rules": "json", "key": "input", "sure": "select",
        "tree": "json",
    }  # fmt: skip


def test_a_form_says_what_the_schema_says() -> None:
    fields = {field.key: field for field in FORM.fields}
    assert (FORM.label, FORM.help) == ("Article", "What is to be written.")
    assert (fields["title"].label, fields["title"].help, fields["title"].required) == ("Title", "In one line.", True)
    assert (fields["words"].value, fields["words"].least, fields["words"].most) == ("800", 100, 5_000)
    assert (fields["tone"].value, fields["tone"].options) == ('"dry"', [('"dry"', "dry"), ('"warm"', "warm")])
    assert (fields["draft"].value, fields["words"].required) == ("on", False)
    assert [field.kind for field in fields["author"].fields] == ["", "date"]


def test_what_is_typed_is_read_by_its_type() -> None:
    given = read(
        title="A\r\nB", words="900", ratio="0.5", tone='"warm"', size='"L"', draft="on", tags="a\r\n\r\nb",
        price="1.20", rules='{"x": 1}', author__name="ada", author__born="1815-12-10", sure="false", key="s3cret",
    )  # fmt: skip
    article = Article.model_validate(given)
    assert (article.title, article.words, article.ratio, article.tone) == ("A\nB", 900, 0.5, "warm")
    assert (article.size, article.draft, article.tags, article.price) == (Size.large, True, ["a", "b"], Decimal("1.20"))
    assert (article.rules, article.author) == ({"x": 1}, Author(name="ada", born=date(1815, 12, 10)))
    assert (article.sure, article.tree) == (False, None)


def test_what_is_left_empty_has_its_default_and_a_box_left_open_is_false() -> None:
    given = read(title="A", words="", size='"S"', author__name="ada", author__born="  ")
    assert given == {"title": "A", "size": "S", "draft": False, "author": {"name": "ada"}}


def test_a_null_that_must_be_said_is_said_by_leaving_it_empty() -> None:
    class Named(BaseModel):
        name: str | None

    assert form_of(Named.model_json_schema()).read({}) == {"name": None}


@pytest.mark.parametrize(("name", "text"), [("words", "many"), ("rules", "{"), ("tone", "cold")])
def test_what_is_not_a_number_or_json_is_refused_by_name(name: str, text: str) -> None:
    with pytest.raises(InputError, match=name.capitalize()):
        read(**{name: text})


def test_an_input_without_a_type_is_typed_as_json() -> None:
    form = form_of(None)
    assert (form.control, form.read({"input": '{"a": [1]}'})) == ("json", {"a": [1]})


def test_an_input_that_is_one_value_has_one_control() -> None:
    form = form_of(pipeline("say", input=str).step("ok", approval=Approval(message="?")).build().input_schema)
    assert (form.control, form.read({"input": "hello"})) == ("text", "hello")


def test_numbers_are_read_as_people_write_them() -> None:
    form = form_of({"type": "number"})
    assert [form.read({"input": text}) for text in (".5", "05", "1e3", "7")] == [0.5, 5, 1_000.0, 7]
    for text in ("nan", "inf", "x"):
        with pytest.raises(InputError, match="is not a number"):
            form.read({"input": text})


def test_what_is_emptied_is_empty_and_null_is_said_by_that() -> None:
    class Text(BaseModel):
        tone: str = "dry"
        limit: int | None = 5

    form = form_of(Text.model_json_schema())
    assert form.read({"input.tone": "", "input.limit": ""}) == {"tone": "", "limit": None}
    assert form.read({}) == {}


def test_an_object_that_may_be_left_out_is_left_out() -> None:
    class Inner(BaseModel):
        flag: bool = False

    class Outer(BaseModel):
        inner: Inner = Field(default_factory=lambda: Inner(flag=True))
        none: Inner | None = None

    form = form_of(Outer.model_json_schema())
    assert [field.control for field in form.fields] == ["json", "json"]
    assert Outer.model_validate(form.read({"input.inner": ""})).inner.flag


def test_controls_of_odd_names_are_told_apart() -> None:
    class Odd(BaseModel):
        a: dict[str, int]
        dotted: int = Field(alias="a.b")
        spaced: int = Field(alias="two words")

    names = [field.name for field in form_of(Odd.model_json_schema()).fields]
    assert names == ["input.a", "input.a%2Eb", "input.two%20words"]


def test_choices_that_look_alike_are_told_apart() -> None:
    form = form_of({"enum": [1, "1", None, ""]})
    assert form.options == [("1", "1"), ('"1"', '"1"'), ("null", "null"), ('""', '""')]


def test_a_form_that_nobody_touches_sends_its_defaults() -> None:
    class Untouched(BaseModel):
        notify: bool | None = True
        sep: str = " "
        tone: Literal["dry", "warm"] = "dry"
        key: SecretStr = SecretStr("hunter2")

    form = form_of(Untouched.model_json_schema())
    sent = {field.name: field.value for field in form.fields}
    assert Untouched.model_validate(form.read(sent)) == Untouched()
