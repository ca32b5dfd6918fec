"""A refusal: the status, the code and one sentence that says what to do, in OpenAI's shape."""

import json
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
KINDS |= {429: "rate_limit_error", 503: "server_busy_error"}


class Refusal(HTTPException):
    """Why a request is not done, and what the caller can do about it.

    Args:
        code: a word that programs can compare.
        retry_after: seconds after which the same request may succeed.
    """

    def __init__(
        self, status: int, code: str, message: str, *, retry_after: int | None = None
    ) -> None:
        super().__init__(status, message)
        self.status, self.code, self.message = status, code, message
        self.retry_after = retry_after

    def body(self) -> dict[str, Any]:
        """As OpenAI writes an error."""
        kind = KINDS.get(self.status, "server_error")
        if 400 <= self.status < 500 and self.status not in KINDS:
            kind = "invalid_request_error"
        error = {"message": self.message, "type": kind, "param": None, "code": self.code}
        return {"error": error}

    def response(self) -> Response:
        """The answer to the request."""
        headers: dict[str, str] = {}
        if self.retry_after is not None:
            headers["Retry-After"] = str(self.retry_after)
        if self.status == 401:
            headers["WWW-Authenticate"] = "Bearer"
        content = json.dumps(self.body(), ensure_ascii=False)
        return Response(content, self.status, headers, media_type="application/json")
