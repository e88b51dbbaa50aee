"""For scripts/test-api: gives Schemathesis the token that each operation needs."""

import os
import subprocess
import uuid

import schemathesis


def token(ttl, user="tester"):
    command = [os.environ["ATELIER"], "token", "--user", user, "--ttl", ttl]
    return subprocess.run(command, check=True, text=True, stdout=subprocess.PIPE).stdout.strip()


def is_stream(operation):
    success = operation.definition.raw["responses"].get("200", {})
    return "text/event-stream" in success.get("content", {})


@schemathesis.auth(refresh_interval=None)
class Tokens:
    """A user's token; for an event stream one that ends soon, because the stream ends with it.

    So streams, which would never finish, are tested like everything else.
    """

    def __init__(self):
        self.lasting = token("1h")

    def get(self, case, context):
        # Whoever ends sessions ends their own, so another user does it.
        if context.operation.path.startswith("/auth/"):
            return token("1h", "leaver")
        return token("2s") if is_stream(context.operation) else self.lasting

    def set(self, case, data, context):
        case.headers = case.headers or {}
        case.headers["Authorization"] = f"Bearer {data}"
        # A key that was used for another request is refused, and short keys repeat by chance.
        key = case.headers.get("Idempotency-Key")
        if isinstance(key, str) and 0 < len(key) < 200 and key.isascii() and key.isprintable() and " " not in key:
            case.headers["Idempotency-Key"] = key + uuid.uuid4().hex
