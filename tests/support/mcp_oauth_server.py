"""An MCP server with its own authorization server, as a process: `python mcp_oauth_server.py FILE PORT`.

Everyone who opens the login page is let in. FILE records tokens and calls; `FILE.lifetime` has the seconds that an
access token lives, `FILE.revoked` refuses all that were given before, and `FILE.issuer` has the host at which users log
in.
"""

import secrets
import sys
import time
from pathlib import Path
from typing import Any

from mcp.server.auth.middleware.auth_context import get_access_token
from mcp.server.auth.provider import AccessToken, AuthorizationCode, RefreshToken, construct_redirect_uri
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthToken

effects, port = Path(sys.argv[1]), int(sys.argv[2])


def note(text: str) -> None:
    with effects.open("a") as file:
        file.write(f"{text}\n")


class Provider:
    """Keeps everything in memory; users are told apart by the client that each login registers."""

    def __init__(self) -> None:
        self.clients: dict[str, Any] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.access: dict[str, AccessToken] = {}
        self.refresh: dict[str, RefreshToken] = {}

    async def get_client(self, client_id: str) -> Any:
        return self.clients.get(client_id)

    async def register_client(self, client_info: Any) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: Any, params: Any) -> str:
        code = secrets.token_urlsafe(16)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(self, client: Any, authorization_code: str) -> Any:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(self, client: Any, authorization_code: Any) -> OAuthToken:
        del self.codes[authorization_code.code]
        note(f"login {client.client_id}")
        return self._tokens(client.client_id, authorization_code.scopes)

    async def load_refresh_token(self, client: Any, refresh_token: str) -> Any:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(self, client: Any, refresh_token: Any, scopes: list[str]) -> OAuthToken:
        del self.refresh[refresh_token.token]  # it counts once
        note(f"refresh {client.client_id}")
        return self._tokens(client.client_id, scopes)

    def _tokens(self, client_id: str, scopes: list[str]) -> OAuthToken:
        told = effects.with_suffix(".lifetime")
        lifetime = int(told.read_text()) if told.exists() else 3600
        access, refresh = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
        self.access[access] = AccessToken(token=access, client_id=client_id, scopes=scopes)
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, refresh_token=refresh, expires_in=lifetime, scope=" ".join(scopes))

    async def load_access_token(self, token: str) -> AccessToken | None:
        if (revoked := effects.with_suffix(".revoked")).exists():
            revoked.unlink()
            self.access.clear()
        return self.access.get(token)

    async def revoke_token(self, token: Any) -> None:
        self.access.pop(token.token, None)


url: Any = f"http://127.0.0.1:{port}"
named = effects.with_suffix(".issuer")  # the host of an authorization server elsewhere
issuer: Any = f"http://{named.read_text()}:{port}" if named.exists() else url
server = MCPServer(
    "private",
    auth_server_provider=Provider(),  # type: ignore[arg-type]
    auth=AuthSettings(
        issuer_url=issuer,
        resource_server_url=f"{url}/mcp",  # type: ignore[arg-type]
        validate_token_resource=False,
        client_registration_options=ClientRegistrationOptions(enabled=True),
    ),
)


@server.tool()
def whoami(text: str = "") -> str:
    """Tell whose token this is."""
    token = get_access_token()
    assert token is not None
    note(f"call {token.client_id}")
    return token.client_id


if __name__ == "__main__":
    server.run("streamable-http", port=port)
