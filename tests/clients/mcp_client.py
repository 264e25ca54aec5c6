#!/usr/bin/env python3
"""The official Python SDK against `sala-chat mcp` and against `/mcp` of `sala-chat serve` (pip install mcp).

    python3 tests/clients/mcp_client.py target/debug/sala-chat --demo mcp                 # over standard input and output
    SALA_CHAT_MCP_ROOTS=$PWD sala-chat --demo serve &
    python3 tests/clients/mcp_client.py http://127.0.0.1:8181/mcp                         # over HTTP; KEY=... sends a key

It initialises, lists, adds README.md, asks twice, reads a resource, provokes an error, cancels a call and leaves.
"""

import asyncio
import os
import sys

from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


def field(thing, *names):
    """SDK 1 has camelCase fields, SDK 2 snake_case."""
    return next(getattr(thing, name) for name in names if hasattr(thing, name))


async def drive(session):
    await session.initialize()
    tools = (await session.list_tools()).tools
    print("tools:", ", ".join(tool.name for tool in tools))
    seen = []

    async def progress(done, total, message):
        seen.append((done, total))

    async def call(name, arguments, **more):
        result = await session.call_tool(name, arguments, **more)
        return field(result, "is_error", "isError"), field(result, "structured_content", "structuredContent"), result.content

    failed, added, content = await call("add_document", {"path": "README.md"}, progress_callback=progress)
    assert not failed, content
    print("added:", added["documents"][0]["name"], "progress:", seen[-1:] or "none")
    assert all(a[0] < b[0] for a, b in zip(seen, seen[1:])), seen
    for _ in range(2):
        failed, answer, content = await call("ask", {"documents": ["README.md"], "question": "What is the licence?"})
        assert not failed, content
        print("answer:", answer["answer"].strip()[:60], answer["usage"])
    assert answer["usage"]["read"] < 60 < answer["usage"]["reused"], answer
    resources = (await session.list_resources()).resources
    read = await session.read_resource(resources[0].uri)
    print("resource:", resources[0].name, len(read.contents[0].text), "characters")
    failed, _, content = await call("ask", {"documents": ["READ.md"], "question": "?"})
    assert failed
    print("error:", content[0].text)
    try:
        await asyncio.wait_for(call("ask", {"documents": ["README.md"], "question": "Tell me everything."}), 0.05)
        print("cancel: the answer was faster")
    except (TimeoutError, asyncio.TimeoutError):
        print("cancelled")
    failed, _, _ = await call("list_documents", {})
    assert not failed


async def main(target):
    if target[0].startswith("http"):
        import httpx2 as httpx

        key = os.environ.get("KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        async with httpx.AsyncClient(headers=headers, timeout=600) as http:
            async with streamable_http_client(target[0], http_client=http) as streams:
                async with ClientSession(streams[0], streams[1]) as session:
                    await drive(session)
    else:
        server = StdioServerParameters(command=target[0], args=target[1:], env=dict(os.environ))
        async with stdio_client(server) as (read, write), ClientSession(read, write) as session:
            await drive(session)
    print("ok")


asyncio.run(main(sys.argv[1:]))
