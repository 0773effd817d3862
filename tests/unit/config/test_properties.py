"""The parser of Java properties: by example, by round trip, and against Java itself."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ackgate.config.properties import Property, parse_properties
from ackgate.errors import ConfigurationError


def pairs(text: str) -> list[tuple[str, str]]:
    return [(found.key, found.value) for found in parse_properties(text, "f")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", []),
        ("\n  \n\t\n", []),
        ("# a = comment\n! b=another\n   # c=and another", []),
        ("a=b", [("a", "b")]),
        ("a:b", [("a", "b")]),
        ("a b", [("a", "b")]),
        ("  a  =  b", [("a", "b")]),
        ("a \t : b", [("a", "b")]),
        ("a=b=c:d", [("a", "b=c:d")]),
        ("a==b", [("a", "=b")]),
        ("a=", [("a", "")]),
        ("a", [("a", "")]),
        ("a=b  ", [("a", "b  ")]),
        ("a=1\r\nb=2\rc=3\n", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1,\\\n   2,\\\n\t3", [("a", "1,2,3")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=1\\\n#2", [("a", "1#2")]),
        ("a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
        ("# no continuation \\\na=b", [("a", "b")]),
        ("a\\=b\\:c\\ d=e", [("a=b:c d", "e")]),
        ("a=\\t\\n\\r\\f\\q\\u00e9", [("a", "\t\n\r\fqé")]),
        ("a=1\na=2", [("a", "1"), ("a", "2")]),
        ("a=\u2028b\x0bc", [("a", "\u2028b\x0bc")]),
        ("\\\n\n", []),
    ],
)
def test_reads_what_java_reads(text: str, expected: list[tuple[str, str]]) -> None:
    assert pairs(text) == expected


def test_counts_lines_from_one_and_by_the_first_of_a_continued_one() -> None:
    assert parse_properties("# x\na=1\\\n2\n\nb=3\n", "f") == [
        Property("a", "12", 2),
        Property("b", "3", 5),
    ]


@pytest.mark.parametrize("text", ["a=\\u12", "a=\\uzzzz", "\\u=a"])
def test_a_broken_unicode_escape_names_file_and_line(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"conf/broker\.conf:2: .*four hexadecimal"):
        parse_properties("ok=1\n" + text, "conf/broker.conf")


def written(text: str, *, is_key: bool) -> str:
    """The text in a form that reads as itself."""
    special = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}
    if is_key:
        special |= {mark: "\\" + mark for mark in "=:#! "}
    escaped = "".join(special.get(letter, letter) for letter in text)
    return "\\" + escaped if escaped.startswith(" ") else escaped


TEXT = st.text(st.sampled_from("ab=:#! \\\t\n\r\fu0é\u2028\U0001f600"), max_size=8) | st.text(
    max_size=8
)


@given(
    expected=st.lists(st.tuples(TEXT.filter(bool), TEXT), max_size=5),
    separator=st.sampled_from(["=", ":", " ", " = ", "\t:\f"]),
    noise=st.sampled_from(["\n", "\r\n", "\r", "\n# note\n", "\n\n  ! x=y \\\n"]),
)
@example(expected=[("k", "")], separator=" ", noise="\n")
@example(expected=[("é", "\\")], separator="=", noise="\n")
def test_what_is_written_is_read_back(
    expected: list[tuple[str, str]], separator: str, noise: str
) -> None:
    text = "".join(
        written(key, is_key=True) + separator + written(value, is_key=False) + noise
        for key, value in expected
    )
    assert pairs(text) == expected


@given(st.text(st.sampled_from("ab=:#! \\\t\n\r\fu0041"), max_size=60) | st.text(max_size=60))
def test_any_text_is_read_or_refused_in_words(text: str) -> None:
    try:
        lines = [found.line for found in parse_properties(text, "f")]
    except ConfigurationError as error:
        lines = []
        refusal = str(error)
    else:
        refusal = "f:"
    assert refusal.startswith("f:")
    assert lines == sorted(set(lines))


JAVA_READER = """
import java.io.*; import java.nio.file.*; import java.util.*;
public class Read {
  public static void main(String[] arguments) throws Exception {
    PrintStream out = new PrintStream(System.out, false, "UTF-8");
    for (String line : Files.readAllLines(Path.of(arguments[0]))) {
      Properties found = new Properties();
      String answer;
      try {
        found.load(new StringReader(new String(HexFormat.of().parseHex(line), "UTF-8")));
        found.remove("");
        StringJoiner pairs = new StringJoiner(" ");
        for (String key : new TreeSet<>(found.stringPropertyNames()))
          pairs.add(hex(key) + "=" + hex(found.getProperty(key)));
        answer = pairs.toString();
      } catch (IllegalArgumentException refused) { answer = "refused"; }
      out.println(answer);
    }
    out.flush();
  }
  static String hex(String text) throws Exception {
    return HexFormat.of().formatHex(text.getBytes("UTF-8"));
  }
}
"""


@pytest.mark.slow
def test_agrees_with_java(tmp_path: Path) -> None:
    java = shutil.which("java")
    if java is None or shutil.which("javac") is None:
        pytest.skip("needs a Java development kit")
    chance = random.Random(20)
    texts = [
        "".join(chance.choices("ab=:#! \\\t\n\r\fu0041é", k=chance.randrange(40)))
        for _ in range(3000)
    ]
    (tmp_path / "texts").write_text("".join(text.encode().hex() + "\n" for text in texts))
    (tmp_path / "Read.java").write_text(JAVA_READER)
    answers = subprocess.run(
        [java, str(tmp_path / "Read.java"), str(tmp_path / "texts")],
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout.split("\n")

    for text, answer in zip(texts, answers, strict=False):
        try:
            found = {key: value for key, value in pairs(text) if key}
        except ConfigurationError:
            ours = "refused"
        else:
            ours = " ".join(
                f"{key}={value}"
                for key, value in sorted(
                    (key.encode().hex(), value.encode().hex()) for key, value in found.items()
                )
            )
        assert ours == answer, repr(text)
