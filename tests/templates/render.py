"""Writes cases.json: what Jinja2 itself renders for templates in published styles, as Hugging Face configures it.

    python3 -m pip install jinja2 && python3 tests/templates/render.py

The templates beside this file (*.jinja) are our own, written in the style that their first line names.
"""

import json
import pathlib

from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = pathlib.Path(__file__).parent


class Refused(Exception):
    pass


def raise_exception(message):
    raise Refused(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


ENV = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
ENV.filters["tojson"] = tojson
ENV.globals["raise_exception"] = raise_exception

TOOLS = [{"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a place, \"now\" & <soon>.",
    "parameters": {"type": "object", "properties": {
        "place": {"type": "string", "description": "Stadt, z. B. Köln"},
        "days": {"type": "integer", "description": "How many", "default": None},
        "metric": {"type": "boolean"}}, "required": ["place"]}}}]


def m(role, content, **more):
    return {"role": role, "content": content, **more}


CONVERSATIONS = {
    "question": [m("user", "Hi there")],
    "system": [m("system", "  Be brief.\n"), m("user", "Hi\n\nthere "), m("assistant", "Hello!"), m("user", "Bye")],
    "thoughts": [m("user", "2+2?"), m("assistant", "<think>\neasy\n</think>\n\n4"), m("user", "and 3+3?"),
                 m("assistant", "<think>\nalso easy\n</think>\n\n\n6\n"), m("user", "thanks")],
    "unicode": [m("user", "Grüße 你好 \U0001F642 <b>&amp;</b> 'q' \"dq\" \\n {{ x }}"), m("assistant", "ok"), m("user", "x")],
    "empty": [m("user", ""), m("assistant", ""), m("user", " ")],
    "tool": [m("user", "Weather in Köln?"),
             m("assistant", "", tool_calls=[{"type": "function", "function": {
                 "name": "get_weather", "arguments": {"place": "Köln", "days": 2, "metric": True}}}]),
             m("tool", "{\"temp\": 7}"), m("tool", "rain"), m("assistant", "7 degrees."), m("user", "thanks")],
    "order": [m("user", "a"), m("user", "b")],
    "calls": [m("system", "Plan."), m("user", "Is 1 < 2?"),
              m("assistant", "<think>\nask\nboth\n</think>\n\nLet me see.", tool_calls=[
                  {"type": "function", "function": {"name": "check", "arguments": {
                      "text": "1 < 2 && \"x\"", "lines": "a\nb", "list": [1, "<b>", None], "plain": "ok", "on": True}}},
                  {"type": "function", "function": {"name": "get_weather", "arguments": {}}}]),
              m("tool", "<yes>"), m("tool", "5\u00b0"),
              m("assistant", "<think>\nso yes\n</think>\n\nYes, and </think> is a tag."), m("user", "And 3?"),
              m("assistant", "", reasoning_content="hm", tool_calls=[
                  {"type": "function", "function": {"name": "check", "arguments": {"text": "3"}}}]),
              m("tool", "no")],
}
OPTIONS = [
    {"add_generation_prompt": True},
    {"add_generation_prompt": False},
    {"add_generation_prompt": True, "enable_thinking": False},
    {"add_generation_prompt": True, "enable_thinking": True},
    {"add_generation_prompt": True, "tools": TOOLS},
]


def main():
    cases = []
    templates = {p.stem: p.read_text() for p in sorted(HERE.glob("*.jinja"))}
    demo = json.loads((HERE / "../../assets/demo/tokenizer_config.json").read_text())
    templates["demo"] = demo["chat_template"]
    for name, source in templates.items():
        # Hugging Face's training marker renders what it holds.
        passed = source.replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")
        template = ENV.from_string(passed)
        for conversation, messages in CONVERSATIONS.items():
            for options in OPTIONS:
                context = {"tools": None, **options, "messages": messages, "bos_token": "<s>", "eos_token": "<|im_end|>"}
                shown = {**options, **({"tools": True} if "tools" in options else {})}
                case = {"template": name, "conversation": conversation, "options": shown}
                try:
                    case["text"] = template.render(**context)
                except Refused as e:
                    case["refused"] = str(e)
                cases.append(case)
    # A template a line: one filter, test or operator each, with the conversation of tool calls.
    expressions = []
    for source in (HERE / "expressions.txt").read_text().splitlines():
        text = ENV.from_string(source).render(messages=CONVERSATIONS["calls"], tools=TOOLS, add_generation_prompt=True,
                                              bos_token="<s>", eos_token="<|im_end|>")
        expressions.append([source, text])
    out = {"tools": TOOLS, "conversations": CONVERSATIONS, "cases": cases, "expressions": expressions}
    (HERE / "cases.json").write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")
    print(len(cases), "cases,", len(expressions), "expressions")


main()
