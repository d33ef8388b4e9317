"""Dockerfiles: what is read of them, what is refused, and what variables make of an instruction."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellfork.dialects.together.building import Lines, arguments_of, image_of, machine, pairs
from cellfork.dialects.together.dockerfile import (
    MAX_VALUE,
    DockerfileError,
    Instruction,
    expand,
    parse,
    words,
)


def step(text: str, name: str = "ENV") -> Instruction:
    return Instruction(3, name, {}, text)


def test_instructions_have_their_lines_and_flags() -> None:
    """Comments and empty lines are none, continued lines are one, names may be in any letters, CRLF is a line's end."""
    plan = parse(
        "# syntax=docker/dockerfile:1\n\nARG V=3\r\nfrom --platform=linux/amd64 python:$V AS base\n"
        "RUN echo one && \\\n  # a comment\n\n  echo two\nCOPY --chmod=755 --link a b /c/\nCMD <<EOF"
    )
    assert plan.notes == ("syntax=docker/dockerfile:1 has no effect: Dockerfiles are read by this server",)
    assert [(found.line, found.name, found.text) for found in plan.arguments] == [(3, "ARG", "V=3")]
    assert (plan.source.text, plan.source.flags) == ("python:$V AS base", {"platform": "linux/amd64"})
    run, copy, command = plan.steps
    assert (run.line, run.name, run.text) == (5, "RUN", "echo one &&   echo two")
    assert (copy.line, copy.text, copy.flags) == (9, "a b /c/", {"chmod": "755", "link": ""})
    assert (command.name, command.text) == ("CMD", "<<EOF")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "no FROM"),
        ("# only a comment\n", "no FROM"),
        ("RUN true", "line 1: RUN: the first instruction is FROM"),
        ("FROM a\nFROM b", "line 2: FROM: builds of several stages"),
        ("FROM a\nCOPY --from=b /x /y", "line 2: COPY --from: builds of several stages"),
        ("FROM a\nRUN --mount=type=cache,target=/x true", "line 2: RUN --mount: it is not supported"),
        ("FROM a\nADD --checksum=sha256:1 x y", "line 2: ADD --checksum"),
        ("FROM a\nRUN <<EOF\necho\nEOF", "line 2: RUN: here-documents"),
        ("FROM a\nRUN cat <<-'E' > x", "line 2: RUN: here-documents"),
        ("FROM a\nCOPY <<E /x", "line 2: COPY: here-documents"),
        ("FROM a\nONBUILD RUN true", "line 2: ONBUILD is not supported"),
        ("FROM a\nEXEC x", "line 2: there is no instruction 'EXEC'"),
        ("FROM a\n\x00", "line 2: there is no instruction"),
        ("FROM a\nRUN", "line 2: RUN: something has to follow"),
        ("FROM a\nRUN \\\n", "line 2: RUN: something has to follow"),
        ("# escape=`\nFROM a", "line 1: another escape character"),
        ("FROM a\n" + "ARG a\n" * 1001, "more than 1,000"),
    ],
)
def test_what_is_not_built_is_refused_with_its_line(text: str, told: str) -> None:
    """Nothing is passed over: a line that cannot be carried out is an error that names it."""
    with pytest.raises(DockerfileError, match=told.replace("(", r"\(")):
        parse(text)


def test_shifts_and_here_strings_are_no_here_documents() -> None:
    """``<<`` that a shell reads otherwise stays with the shell."""
    for text in ("echo $((1<<2))", 'cat <<<"x"', "echo '<<'", "echo 1 << 2"):
        assert parse(f"FROM a\nRUN {text}").steps[0].text == text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=$x", ["a=1 2"]),
        ("a='$x' b=\"$x y\"", ["a=$x", "b=1 2 y"]),
        (r"a=\$x b=\ c", ["a=$x", "b= c"]),
        (r'"\$x \" \\ \n"', ['$x " \\ \\n']),
        ("${x} ${none} $none-", ["1 2", "", "-"]),
        ("${none:-d} ${empty:-d} ${empty-d} ${x:-d}", ["d", "d", "", "1 2"]),
        ("${none:+d} ${empty:+d} ${empty+d} ${x:+d}", ["", "", "d", "d"]),
        ("${none:-${x}/${empty:-y}}", ["1 2/y"]),
        ("$ $1 a$", ["$", "$1", "a$"]),
    ],
)
def test_variables_and_quotes(text: str, expected: list[str]) -> None:
    """Words are read as Docker reads them; what a variable holds is never cut into words."""
    assert words(step(text), {"x": "1 2", "empty": ""}) == expected


@pytest.mark.parametrize(
    "text", ["'a", '"a', "${", "${x", "${1}", "${x#y}", "${x:?}", "${none:?gone}", "${x:"]
)
def test_words_that_do_not_end_are_refused(text: str) -> None:
    """Quotes and braces are closed, and only the forms that are known are taken."""
    with pytest.raises(DockerfileError, match="line 3"):
        words(step(text), {})


def test_variables_cannot_grow_without_bound() -> None:
    """Each variable may hold the one before it twice; the product is bounded before it is made."""
    variables = {"a": "x" * (MAX_VALUE // 2)}
    assert len(expand(step(""), variables, "$a$a")) == MAX_VALUE
    for text in ("$a$a$a", '"$a$a$a"', "${n:-$a$a$a}"):
        with pytest.raises(DockerfileError, match="longer than"):
            expand(step(""), variables, text)
    with pytest.raises(DockerfileError, match="nested"):
        expand(step(""), {}, "${a:-" * 50 + "}" * 50)


@given(st.text(alphabet="ab$'{}\"\\:-+? \n#<[]=,", max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Whatever the text is, there are words or an error with a line, and nothing else."""
    try:
        for found in parse(f"FROM a\nENV {text}\nCOPY {text}").steps:
            words(found, {"a": "b"})
            found.items()
            [*pairs(found, {})]
    except DockerfileError:
        pass


def test_the_image_may_come_from_arguments() -> None:
    """``ARG`` before ``FROM`` has its default, or what the client says; the platform is this one or refused."""
    plan = parse("ARG V=3\nARG N\nFROM --platform=$TARGETPLATFORM python:${V}${N} as x")
    assert image_of(plan, {}) == "python:3"
    assert image_of(plan, {"V": "4", "N": "-slim"}) == "python:4-slim"
    assert arguments_of(plan, {})["TARGETARCH"] == machine()
    for text in ("FROM --platform=windows/x86 a", "FROM a b", "FROM a b c", "FROM $none"):
        with pytest.raises(DockerfileError, match="line 1: FROM"):
            image_of(parse(text), {})


def test_both_forms_of_variables() -> None:
    """``ENV a=b c=d`` is two variables, ``ENV a b c`` is one; anything else is refused."""
    assert [*pairs(step("a=b c='d e'"), {})] == [("a", "b"), ("c", "d e")]
    assert [*pairs(step("a b  $x"), {"x": "c"})] == [("a", "b  c")]
    for text in ("a", "a=b c", "=b"):
        with pytest.raises(DockerfileError, match="name=value"):
            [*pairs(step(text), {})]


def test_output_is_cut_into_lines_per_stream() -> None:
    """Pieces that cross each other do not mix, a long line becomes several, and the end needs no newline."""
    lines = Lines()
    assert [*lines.feed("stdout", "a\nb")] == ["a"]
    assert [*lines.feed("stderr", "x\r\ny")] == ["x"]
    assert [*lines.feed("stdout", "c\n")] == ["bc"]
    assert [len(line) for line in lines.feed("stdout", "z" * 5000)] == [4096, 904]
    assert [*lines.rest()] == ["y"]
