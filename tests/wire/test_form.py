"""Forms in memory: read once, and written again so that the next reader sees the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.testclient import TestClient

from sloserve.core.errors import InvalidRequest
from sloserve.wire.form import MOST_PARTS, Form, FormFile, is_form, read_form


@given(
    st.dictionaries(st.from_regex(r"[a-z_.-]{1,8}(\[\])?", fullmatch=True), st.text(max_size=20), max_size=5),
    st.lists(st.binary(max_size=60) | st.just(b"\r\n--sloserve-form--\r\n"), max_size=3),
)
def test_a_form_that_is_written_is_read_as_it_was(values: dict[str, str], recordings: list[bytes]) -> None:
    files = [FormFile("file", "a.wav", "audio/wav", data) for data in recordings]
    form = Form({name: [value.encode(errors="replace").decode()] for name, value in values.items()}, files)
    body, content_type = form.encoded()
    assert is_form(content_type.encode()) and read_form(body, content_type.encode()) == form
    assert form.encoded() == (body, content_type), "equal forms are known by equal bodies"


def test_the_next_server_sees_what_was_read() -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import JSONResponse
    from starlette.routing import Route

    async def show(request: Request) -> JSONResponse:
        async with request.form() as form:
            return JSONResponse([[name, getattr(one, "filename", one)] for name, one in form.multi_items()])

    odd = (
        b'--x\r\ncontent-disposition: form-data; name="other"\r\nContent-Disposition: form-data; name="model"\r\n\r\n'
        b'a\r\n--x\r\ncontent-disposition: form-data; name="file"; filename="a\\"; name=\\"model.wav"\r\n\r\n\r\n--x--'
    )
    form = read_form(odd, b"multipart/form-data; boundary=x")
    body, content_type = form.encoded()
    with TestClient(Starlette(routes=[Route("/", show, methods=["POST"])])) as client:
        seen = client.post("/", content=body, headers={"content-type": content_type}).json()
    assert seen[0] == ["model", "a"] and form.value("model") == "a"
    assert [name for name, _ in seen] == ["model", "file"]


def part(name: str, value: str = "a") -> str:
    return f'--x\r\ncontent-disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("", "a form with its end"),
        (part("model"), "a form with its end"),
        (part("model") * 2 + "--x--", "give the field once"),
        (part("model[]") * (MOST_PARTS + 1) + "--x--", f"at most {MOST_PARTS} fields"),
        (part("a b") + "--x--", "letters, digits"),
        (part("model", "a" * (1 << 21)) + "--x--", "at most 1048576 with all other fields"),
        ("nothing of a form", "a form"),
    ],
)
def test_what_is_no_form_is_refused(body: str, why: str) -> None:
    with pytest.raises(InvalidRequest, match=why):
        read_form(body.encode(), b"multipart/form-data; boundary=x")


def test_a_form_needs_its_boundary_and_text() -> None:
    for content_type, body in ((b"multipart/form-data", b""), (b"multipart/form-data; boundary=x", b"")):
        with pytest.raises(InvalidRequest):
            read_form(body, content_type)
    bad = part("model").encode("latin-1").replace(b"\r\n\r\na", b"\r\n\r\n\xff") + b"--x--"
    with pytest.raises(InvalidRequest, match="UnicodeDecodeError"):
        read_form(bad, b"multipart/form-data; boundary=x")
    assert not is_form(b"application/json")
