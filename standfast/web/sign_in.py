"""Signs people in with a token, and out again."""

from typing import TYPE_CHECKING

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from standfast.web.mounts import own_path, root_of
from standfast.web.visitors import Visitors

if TYPE_CHECKING:
    from standfast.web.pages import Pages


class SignIn:
    """The handlers of `/login` and `/logout`."""

    def __init__(self, pages: "Pages", visitors: Visitors) -> None:
        self._pages, self._visitors = pages, visitors

    def routes(self) -> list[Route]:
        return [
            Route("/login", self.login, methods=["GET", "POST"]),
            Route("/logout", self.logout, methods=["POST"]),
        ]

    async def login(self, request: Request) -> Response:
        """Sign in with a token; after that a cookie identifies the person."""
        pages, root = self._pages, root_of(request.scope)
        to = own_path(request.query_params.get("to", ""), root)
        if request.method == "GET":
            return pages.page(request, "login", to=to, wrong=False, changes=None)
        form = await pages.access.form(request)
        person = self._visitors.sign_in(request, form.get("token", "").strip())
        if person is None:
            return pages.page(request, "login", status=401, to=to, wrong=True, changes=None)
        response = RedirectResponse(own_path(form.get("to", ""), root), 303)
        pages.access.sign_in(response, person, root=root, is_https=request.url.scheme == "https")
        return response

    async def logout(self, request: Request) -> Response:
        await self._pages.access.form(request)
        response = RedirectResponse(f"{root_of(request.scope)}/login", 303)
        await self._visitors.sign_out(request, response)
        return response
