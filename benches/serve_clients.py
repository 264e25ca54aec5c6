#!/usr/bin/env python3
"""Clients beside each other at a running `sala-chat serve`: throughput and time to first token. Needs nothing but Python.

    sala-chat serve --listen 127.0.0.1:8181 &
    benches/serve_clients.py http://127.0.0.1:8181 --clients 8 --rounds 3 --tokens 128

Each client holds a conversation of its own and sends all of it again with every question, as stateless clients do. One JSON object
is printed: what one client alone gets, what all get together, and how many prompt tokens were read again.
"""

import argparse
import http.client
import json
import statistics
import threading
import time
import urllib.parse


def ask(server, model, given, tokens, key):
    """One streamed answer to messages or a raw text: its text, usage, seconds to the first token and in all."""
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=600)
    body = {
        "model": model,
        "stream": True,
        "stream_options": {"include_usage": True},
        "max_tokens": tokens,
        "temperature": 0,
    }
    body["prompt" if isinstance(given, str) else "messages"] = given
    path = "/v1/completions" if isinstance(given, str) else "/v1/chat/completions"
    headers = {"content-type": "application/json"}
    if key:
        headers["authorization"] = "Bearer " + key
    begun = time.monotonic()
    connection.request("POST", path, json.dumps(body), headers)
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(f"{response.status}: {response.read().decode()}")
    first, text, usage = None, "", None
    for line in response:
        if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
            continue
        event = json.loads(line[6:])
        if event.get("error"):
            raise SystemExit(event["error"]["message"])
        usage = event.get("usage") or usage
        for choice in event["choices"]:
            delta = choice.get("delta") or {"content": choice.get("text")}
            piece = (delta.get("reasoning_content") or "") + (delta.get("content") or "")
            if piece and first is None:
                first = time.monotonic() - begun
            text += delta.get("content") or ""
    connection.close()
    return text, usage, first if first is not None else time.monotonic() - begun, time.monotonic() - begun


def talk(server, model, number, options, answers):
    """A conversation: rules of its own, then questions; or, raw, a text that goes on and on."""
    if options.raw:
        text = f"{number}. Once upon a time, " + "there was a little town by the sea. " * options.words
        for round_ in range(options.rounds):
            more, usage, first, whole = ask(server, model, text, options.tokens, options.key)
            text += more
            answers.append((round_, usage, first, whole))
        return
    rules = f"You are assistant number {number}. " + "Answer in a few plain words. " * options.words
    messages = [{"role": "system", "content": rules}]
    for round_ in range(options.rounds):
        messages.append({"role": "user", "content": f"Question {round_ + 1}: tell me something about the number {number + round_}."})
        text, usage, first, whole = ask(server, model, messages, options.tokens, options.key)
        messages.append({"role": "assistant", "content": text})
        answers.append((round_, usage, first, whole))


def measure(server, model, clients, options, offset):
    """What so many clients get together."""
    answers, threads = [], []
    begun = time.monotonic()
    for number in range(clients):
        thread = threading.Thread(target=talk, args=(server, model, offset + number, options, answers))
        thread.start()
        threads.append(thread)
    for thread in threads:
        thread.join()
    took = time.monotonic() - begun
    written = sum(a[1]["completion_tokens"] for a in answers)
    prompt = sum(a[1]["prompt_tokens"] for a in answers)
    cached = sum(a[1]["prompt_tokens_details"]["cached_tokens"] for a in answers)
    return {
        "clients": clients,
        "answers": len(answers),
        "seconds": round(took, 3),
        "written": written,
        "tokens_per_s": round(written / took, 1),
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "first_token_s": {
            "first_question": round(statistics.median(a[2] for a in answers if a[0] == 0), 3),
            "later_questions": round(statistics.median([a[2] for a in answers if a[0] > 0] or [0]), 3),
        },
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("url")
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--words", type=int, default=50, help="how long the rules are")
    parser.add_argument("--raw", action="store_true", help="texts without a template, for a model whose answers are short")
    parser.add_argument("--key")
    options = parser.parse_args()
    server = urllib.parse.urlparse(options.url)
    connection = http.client.HTTPConnection(server.hostname, server.port, timeout=60)
    connection.request("GET", "/v1/models", headers={"authorization": f"Bearer {options.key}"} if options.key else {})
    model = json.loads(connection.getresponse().read())["data"][0]["id"]
    # Numbers that no run before has used: what is measured is not found on disk.
    offset = int(time.time()) % 1_000_000 * 100
    alone = measure(server, model, 1, options, offset)
    together = measure(server, model, options.clients, options, offset + 50)
    print(json.dumps({"model": model, "alone": alone, "together": together}, indent=1))


if __name__ == "__main__":
    main()
