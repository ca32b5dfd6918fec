"""The web page at `/`: three files, no assets from elsewhere."""

from pathlib import Path

from fastapi import APIRouter, Response

ASSETS = Path(__file__).parent / "assets"
KINDS = {".html": "text/html", ".js": "text/javascript", ".css": "text/css"}


def router() -> APIRouter:
    """The routes of the page."""
    routes = APIRouter(include_in_schema=False)
    for file in sorted(ASSETS.iterdir()):
        path = "/" if file.name == "page.html" else f"/assets/{file.name}"
        answer = _answer(file.read_bytes(), KINDS[file.suffix])
        routes.add_api_route(path, answer, methods=["GET"])
    return routes


def _answer(content: bytes, kind: str):
    async def answer() -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return answer
