"""Names of container images: which template each stands for, and what is said where there is none."""

import pytest

from cellfork.dialects.images import Images
from cellfork.model.limits import Limits
from cellfork.model.specs import Template
from cellfork.server.templates import Named, TemplateTable

TEMPLATES = TemplateTable([Named(Template("default"), ()), Named(Template("science"), ("lab",))], Limits())


@pytest.mark.parametrize(
    ("image", "name"),
    [
        ("python:3", "default"),
        ("python:3.12-slim", "default"),
        ("python", "default"),
        ("docker.io/library/python:3.11", "default"),
        ("python:3.12@sha256:00", "default"),
        ("opensandbox/code-interpreter:latest", "default"),
        ("registry.example:5000/opensandbox/code-interpreter", "default"),
        ("ghcr.io/us/analysis:7", "science"),
        ("alpine", "science"),
    ],
)
def test_an_image_stands_for_a_template(image: str, name: str) -> None:
    """Patterns are compared with the whole name; a digest, a missing tag and Docker's own registry change nothing."""
    table = {"ghcr.io/us/*": "lab", "alpine:latest": "science", "gone:*": "no-such-template"}
    found = Images(table, TEMPLATES).find(image)
    assert found is not None
    assert found.name == name


@pytest.mark.parametrize(
    "image", ["python:2", "python:30", "python:3/x", "alpine:3", "gone:1", "", ":", "@", "x" * 10_000]
)
def test_other_images_are_refused_with_what_there_is(image: str) -> None:
    """An image that nothing stands for names the templates, the known images and the setting, at a bounded length."""
    images = Images({"alpine:latest": "science", "gone:*": "no-such-template"}, TEMPLATES)
    assert images.find(image) is None
    told = images.unknown(image)
    assert "'default', 'science'" in told
    assert "'alpine:latest'" in told
    assert len(told) < 2000


def test_the_owner_goes_first() -> None:
    """A pattern of the owner's goes before the built-in ones, and in its order."""
    images = Images({"python:3.9*": "science", "python:*": "default"}, TEMPLATES)
    assert [found.name for image in ("python:3.9", "python:2") if (found := images.find(image))] == [
        "science",
        "default",
    ]
