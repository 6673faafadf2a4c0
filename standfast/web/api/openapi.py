"""Makes the OpenAPI document of the JSON API from its operations and their models."""

import re
from typing import Any

from pydantic.json_schema import models_json_schema

from standfast.events import EVENTS
from standfast.messages import JSONObject
from standfast.web.api import models
from standfast.web.api.calls import IDEMPOTENCY_KEY
from standfast.web.api.operations import OPERATIONS, Operation

_REFERENCE = "#/components/schemas/{model}"
_FAILURES = ("400", "401", "403", "404", "405", "409", "413", "415", "422", "429", "500", "502", "503", "504")
_WORD = re.compile(r"\W+")


def document(version: str) -> JSONObject:
    """Return the document."""
    used = {model for one in OPERATIONS for model in (one.answer, one.body) if model is not None} | {models.Error}
    ordered = sorted(used, key=lambda model: model.__name__)
    found, schemas = models_json_schema([(model, _mode(model)) for model in ordered], ref_template=_REFERENCE)
    references = {model: schema for (model, _), schema in found.items()}
    events = EVENTS.json_schema(ref_template=_REFERENCE, mode="serialization")
    components = {**schemas.get("$defs", {}), **events.pop("$defs", {}), "Event": events}
    paths: JSONObject = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation, references)
    return {
        "openapi": "3.1.0",
        "info": {"title": "standfast", "version": version, "description": "Runs of agents and pipelines."},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _mode(model: type) -> Any:
    return "validation" if issubclass(model, models.Body) else "serialization"


def _described(operation: Operation, references: dict[Any, Any]) -> JSONObject:
    parameters: list[JSONObject] = [
        {"name": name, "in": "query", "schema": schema} for name, schema in (operation.query or {}).items()
    ]
    if "{run}" in operation.path:
        run = {"type": "string", "minLength": 1, "description": "A workflow id, percent-encoded as one segment."}
        parameters.insert(0, {"name": "run", "in": "path", "required": True, "schema": run})
    content: JSONObject = {"application/json": {"schema": references.get(operation.answer, {"type": "object"})}}
    if operation.path.endswith("/events"):
        parameters.append({"name": "Last-Event-ID", "in": "header", "schema": {"type": "string"}})
        event = {"$ref": "#/components/schemas/Event"}
        listed = {"type": "object", "properties": {"events": {"type": "array", "items": event}}, "required": ["events"]}
        content = {"application/json": {"schema": listed}, "text/event-stream": {"schema": {"type": "string"}}}
    described: JSONObject = {
        "operationId": f"{operation.method.lower()}{_WORD.sub('_', operation.path).rstrip('_')}",
        "summary": operation.summary,
        "description": f"For the role {operation.role}." + (f" Scope: {operation.scope}." if operation.scope else ""),
        "parameters": parameters,
        "responses": {str(operation.status): {"description": "Done", "content": content}},
    }
    failed = {"description": "Not done", "content": {"application/json": {"schema": references[models.Error]}}}
    described["responses"] |= dict.fromkeys(_FAILURES, failed)
    if operation.body is not None:
        schema = {"schema": references[operation.body]}
        described["requestBody"] = {"required": True, "content": {"application/json": schema}}
        key = {"type": "string", "minLength": 1, "maxLength": 200}
        parameters.append({"name": IDEMPOTENCY_KEY, "in": "header", "schema": key})
    return described
