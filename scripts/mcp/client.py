"""Sends tool calls through the official Python client: reads JSON calls, writes JSON answers.

Usage: client.py MODE (--stdio COMMAND… | --http URL), where MODE is legacy or a protocol revision.
MCP_BEARER may hold a bearer token. A call with "progress" also returns its progress messages.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client
from mcp.client.streamable_http import streamable_http_client


async def play(mode, how, where, calls):
    if how == "--stdio":
        server = stdio_client(StdioServerParameters(command=where[0], args=where[1:]))
    elif token := os.environ.get("MCP_BEARER"):
        http = httpx2.AsyncClient(headers={"Authorization": f"Bearer {token}"}, timeout=30)
        server = streamable_http_client(where[0], http_client=http)
    else:
        server = where[0]
    answers = []
    async with Client(server, mode=mode) as client:
        tools = await client.list_tools()
        for call in calls:
            messages = []

            async def on_progress(progress, total, message):
                messages.append(message)

            try:
                listen = on_progress if call.get("progress") else None
                result = await client.call_tool(call["tool"], call["args"], progress_callback=listen)
                answers.append({
                    "progress": messages,
                    "text": "".join(block.text for block in result.content),
                    "error": bool(result.is_error),
                    "data": result.structured_content,
                })
            except Exception as error:
                answers.append({"raised": str(error)})
        names = [tool.name for tool in tools.tools]
        return {"protocol": client.session.protocol_version, "tools": names, "answers": answers}


mode, how, *where = sys.argv[1:]
print(json.dumps(asyncio.run(play(mode, how, where, json.load(sys.stdin)))))
