#!/usr/bin/env python3
"""What share of each request of a coding agent is kept: a proxy in front of `sala-chat serve` that prints the usage.

    sala-chat serve --demo --listen 127.0.0.1:8181 &
    python3 tests/clients/cached.py 8300 http://127.0.0.1:8181 &
    ANTHROPIC_BASE_URL=http://127.0.0.1:8300 ANTHROPIC_AUTH_TOKEN=x ANTHROPIC_MODEL=demo claude -p "What is here?"
    ANTHROPIC_BASE_URL=http://127.0.0.1:8300 ANTHROPIC_AUTH_TOKEN=x ANTHROPIC_MODEL=demo claude -c -p "And again?"
    codex exec "What is here?"; codex exec resume --last "And again?"    # base_url = "http://127.0.0.1:8300/v1", wire_api = "responses"
    opencode run "What is here?"; opencode run -c "And again?"           # @ai-sdk/openai-compatible with the same baseURL
"""

import http.server
import re
import sys
import urllib.error
import urllib.request

PORT, TARGET = int(sys.argv[1]), sys.argv[2]
HOP = {"host", "content-length", "connection", "accept-encoding", "transfer-encoding"}


def shares(reply):
    """The last count of each name: a stream repeats its usage."""
    names = "input_tokens|prompt_tokens|cached_tokens|cache_read_input_tokens"
    counts = {name: int(n) for name, n in re.findall(rf'"({names})":(\d+)', reply)}
    whole = counts.get("prompt_tokens") or counts.get("input_tokens", 0) + counts.get("cache_read_input_tokens", 0)
    return whole, counts.get("cached_tokens", 0) + counts.get("cache_read_input_tokens", 0)


class Proxy(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def pass_on(self):
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        headers = {k: v for k, v in self.headers.items() if k.lower() not in HOP}
        request = urllib.request.Request(TARGET + self.path, body or None, headers, method=self.command)
        try:
            reply = urllib.request.urlopen(request, timeout=600)
        except urllib.error.HTTPError as error:
            reply = error
        data = reply.read()
        whole, kept = shares(data.decode(errors="replace"))
        print(f"{reply.status} {self.path}: {kept:,} of {whole:,} tokens were kept", flush=True)
        self.send_response(reply.status)
        for name, value in reply.headers.items():
            if name.lower() not in HOP:
                self.send_header(name, value)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    do_GET = do_HEAD = do_POST = do_DELETE = pass_on


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Proxy).serve_forever()
