"""Plays tool calls through the official Python client: JSON calls in, JSON answers out.

Usage: client.py MODE (--stdio COMMAND… | --http URL), MODE being legacy or a protocol revision.
"""

import asyncio
import json
import sys

from mcp import StdioServerParameters
from mcp.client.client import Client
from mcp.client.stdio import stdio_client


async def play(mode, how, where, calls):
    server = where[0] if how == "--http" else stdio_client(StdioServerParameters(command=where[0], args=where[1:]))
    answers = []
    async with Client(server, mode=mode) as client:
        tools = await client.list_tools()
        for call in calls:
            try:
                result = await client.call_tool(call["tool"], call["args"])
                answers.append({
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
