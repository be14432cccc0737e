"""Every word is in both tables, and no word is there in vain."""

from __future__ import annotations

import json
import re

from octavo.entrypoints.web.assets import FOLDER

ENTRY = re.compile(r'^  ("[^"]+"|\w+): ("(?:[^"\\]|\\.)*"),$', re.MULTILINE)


def table(name: str) -> dict[str, str]:
    text = (FOLDER / "i18n" / f"{name}.js").read_text(encoding="utf-8")
    found = {key.strip('"'): json.loads(words) for key, words in ENTRY.findall(text)}
    lines = [line for line in text.splitlines() if line.startswith("  ")]
    assert len(found) == len(lines), "a line that this test does not read, or a key given twice"
    return found


ENGLISH, CHINESE = table("en"), table("zh-CN")
CODE = "\n".join(
    path.read_text(encoding="utf-8") for path in [*FOLDER.glob("*.html"), *FOLDER.glob("js/*.js")]
)


def test_the_tables_have_the_same_keys() -> None:
    assert list(ENGLISH) == list(CHINESE)


def test_the_words_take_the_same_values() -> None:
    names = re.compile(r"\{(\w+)\}")
    wrong = [k for k in ENGLISH if set(names.findall(ENGLISH[k])) != set(names.findall(CHINESE[k]))]
    assert not wrong


def test_chinese_is_chinese() -> None:
    same = {key for key, words in CHINESE.items() if not re.search("[\u4e00-\u9fff]", words)}
    assert same == {
        *("parameter.top_p", "parameter.top_k", "parameter.min_p", "parameter.schema"),
        *("format.object", "placeholder.schema", "placeholder.tools", "plot.label"),
    }


def test_every_key_is_used_and_every_used_key_is_there() -> None:
    used = set(re.findall(r'data-t(?:-\w+)?(?:="|": ")([\w.]+)"', CODE))
    used |= set(re.findall(r'\bt\("([\w.]+)"', CODE))
    used |= set(re.findall(r'\["(problem\.\w+)"', CODE))
    assert not used - set(ENGLISH)
    prefixes = tuple(re.findall(r"`([\w.]+\.)\$\{", CODE))
    quoted = set(re.findall(r'"([\w.]+)"', CODE))
    assert not [k for k in ENGLISH if not k.startswith(prefixes) and k not in used | quoted]
