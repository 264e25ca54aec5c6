#!/usr/bin/env python3
"""The OpenAI and Anthropic Python clients at a running `sala-chat serve`. By hand, in an environment outside the tree:

    python3 -m venv /tmp/clients && /tmp/clients/bin/pip install openai anthropic
    sala-chat serve --demo --listen 127.0.0.1:8181 &
    /tmp/clients/bin/python tests/clients/conformance.py http://127.0.0.1:8181

What the clients parse into their own types is what is checked; what a small model says is not.
"""

import json
import sys

import anthropic
import openai

BASE = sys.argv[1]
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
WEATHER = {"type": "object", "properties": {"place": {"type": "string", "maxLength": 30}}, "required": ["place"], "additionalProperties": False}

# Fields of a response that Open Responses wants in every object.
RESPONSE = """id object created_at completed_at status incomplete_details model previous_response_id instructions output error tools
tool_choice truncation parallel_tool_calls text top_p top_logprobs temperature reasoning usage max_output_tokens max_tool_calls background
service_tier metadata safety_identifier prompt_cache_key user""".split()


def check(what, holds, detail=""):
    print(("ok  " if holds else "FAIL"), what, detail if not holds else "")
    check.failed |= not holds


check.failed = False


def chat(client, model):
    rules = "Answer in a few words. " * 40
    messages = [{"role": "system", "content": rules}, {"role": "user", "content": "What is sala-chat?"}]
    whole = client.chat.completions.create(model=model, messages=messages, temperature=0, max_tokens=60)
    check("chat", whole.choices[0].finish_reason in ("stop", "length") and whole.choices[0].message.content)
    messages += [{"role": "assistant", "content": whole.choices[0].message.content}, {"role": "user", "content": "Thanks. And?"}]
    stream = client.chat.completions.create(
        model=model, messages=messages, stream=True, stream_options={"include_usage": True}, max_tokens=20
    )
    chunks = list(stream)
    usage = chunks[-1].usage
    check("stream with usage", usage and usage.prompt_tokens_details.cached_tokens > 100, usage)
    parsed = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Who?"}],
        response_format={"type": "json_schema", "json_schema": {"name": "person", "strict": True, "schema": SCHEMA}},
        max_tokens=300,
    )
    person = json.loads(parsed.choices[0].message.content)
    check("json schema", isinstance(person["age"], int) and isinstance(person["name"], str), person)
    tools = [{"type": "function", "function": {"name": "weather", "description": "Weather of a place", "parameters": WEATHER}}]
    called = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Rain in Rome?"}],
        tools=tools,
        tool_choice="required",
        max_tokens=300,
    )
    calls = called.choices[0].message.tool_calls
    check("tool call", calls and "place" in json.loads(calls[0].function.arguments), called)
    asked = dict(model=model, messages=[{"role": "user", "content": "Rain in Rome?"}], tools=tools, tool_choice="required", max_tokens=300)
    with client.chat.completions.stream(**asked) as stream:
        pieces = [event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"]
        call = stream.get_final_completion().choices[0].message.tool_calls[0].function
    check("tool call in pieces", len(pieces) > 1 and "".join(pieces) == call.arguments and "place" in json.loads(call.arguments), pieces)
    likely = client.chat.completions.create(
        model=model, messages=[{"role": "user", "content": "Hi"}], logprobs=True, top_logprobs=3, max_tokens=3
    )
    content = likely.choices[0].logprobs.content
    check("logprobs", len(content) >= 1 and len(content[0].top_logprobs) == 3)
    seeded = [
        client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "Tell a story."}], seed=7, temperature=1, max_tokens=30
        )
        .choices[0]
        .message.content
        for _ in range(2)
    ]
    check("seed", seeded[0] == seeded[1], seeded)
    try:
        client.chat.completions.create(model=model, messages=[{"role": "user", "content": "x"}], temperature=9)
        check("bad request", False)
    except openai.BadRequestError as e:
        check("bad request", e.param == "temperature", e)
    try:
        client.chat.completions.create(model="no-such-model", messages=[{"role": "user", "content": "x"}])
        check("unknown model", False)
    except openai.NotFoundError as e:
        check("unknown model", e.code == "model_not_found", e)


def completions(client, model):
    echoed = client.completions.create(model=model, prompt="Once upon a time", echo=True, logprobs=1, max_tokens=1, temperature=0)
    told = echoed.choices[0].logprobs
    check("echoed logprobs", told.token_logprobs[0] is None and all(v <= 0 for v in told.token_logprobs[1:]), told)
    greedy = [v == max(best.values()) for v, best in zip(told.token_logprobs[1:], told.top_logprobs[1:])]
    check("the drawn token is the likeliest", greedy[-1], told)


def responses(client, model):
    first = client.responses.create(model=model, input="What is sala-chat?", max_output_tokens=40)
    check("response", first.status in ("completed", "incomplete") and first.output_text, first)
    second = client.responses.create(model=model, input="And?", previous_response_id=first.id, max_output_tokens=20)
    cached = second.usage.input_tokens_details.cached_tokens
    check("previous response is kept", cached > first.usage.input_tokens, second.usage)
    again = client.responses.retrieve(first.id)
    check("response had again", again.output_text == first.output_text and again.usage == first.usage, again)
    client.responses.delete(second.id)
    try:
        client.responses.retrieve(second.id)
        check("deleted", False)
    except openai.NotFoundError as e:
        check("deleted", e.code == "not_found", e)
    with client.responses.stream(model=model, input="And what else?", previous_response_id=first.id, max_output_tokens=400) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    check("response stream", kinds[0] == "response.created" and final.output_text is not None, kinds)
    missing = [name for name in type(final).model_fields if name in RESPONSE and name not in final.model_fields_set]
    check("every field of a response", not missing, missing)
    tools = [{"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}]
    with client.responses.stream(model=model, input="Rain?", tools=tools, tool_choice="required", max_output_tokens=300) as stream:
        pieces = [event.delta for event in stream if event.type == "response.function_call_arguments.delta"]
        call = [item for item in stream.get_final_response().output if item.type == "function_call"][0]
    check("function call in pieces", len(pieces) > 1 and "".join(pieces) == call.arguments and "place" in json.loads(call.arguments), pieces)


def messages(client, model):
    ask = {"model": model, "max_tokens": 40, "system": "Be brief.", "messages": [{"role": "user", "content": "What is sala-chat?"}]}
    whole = client.messages.create(**ask)
    check("message", whole.content[0].type == "text" and whole.stop_reason in ("end_turn", "max_tokens"), whole)
    with client.messages.stream(**ask) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    check("message stream", final.content[0].text == text, final)
    counted = client.messages.count_tokens(model=model, system=ask["system"], messages=ask["messages"])
    check("count tokens", counted.input_tokens == whole.usage.input_tokens + whole.usage.cache_read_input_tokens, counted)
    tools = [{"name": "weather", "description": "Weather of a place", "input_schema": WEATHER}]
    called = client.messages.create(**{**ask, "max_tokens": 300}, tools=tools, tool_choice={"type": "any"})
    check("tool use", called.stop_reason == "tool_use" and "place" in called.content[-1].input, called)
    with client.messages.stream(**{**ask, "max_tokens": 300}, tools=tools, tool_choice={"type": "any"}) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    check("tool use in pieces", len(pieces) > 1 and json.loads("".join(pieces)) == final.content[-1].input, pieces)
    try:
        client.messages.create(**ask, extra_body={"temperature": 9})
        check("bad request", False)
    except anthropic.BadRequestError as e:
        check("bad request", "temperature" in str(e), e)


def main():
    client = openai.OpenAI(base_url=BASE + "/v1", api_key="none", max_retries=0)
    model = client.models.list().data[0].id
    chat(client, model)
    completions(client, model)
    responses(client, model)
    messages(anthropic.Anthropic(base_url=BASE, api_key="none", max_retries=0), model)
    sys.exit(1 if check.failed else 0)


main()
