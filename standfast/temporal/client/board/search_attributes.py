"""Makes runs findable by their waiting items, through search attributes, which must exist in a namespace.

Temporal Cloud does not allow listing or adding them over this connection, although they may have been created there. A
query that uses them detects them on any server.
"""

import logging

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.common import SearchAttributeKey, SearchAttributePair
from temporalio.service import RPCError, RPCStatusCode

from standfast.temporal.wire import names

_LOG = logging.getLogger("standfast")
_INDEXED = {
    "Keyword": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD,
    "KeywordList": IndexedValueType.INDEXED_VALUE_TYPE_KEYWORD_LIST,
    "Datetime": IndexedValueType.INDEXED_VALUE_TYPE_DATETIME,
}


def started_attributes(session: str | None, tenant: str | None) -> list[SearchAttributePair[str]]:
    """Return the attributes of a run that no worker has begun; the run sets the same ones when it begins."""
    values = {names.STATUS_ATTRIBUTE: "running", names.SESSION_ATTRIBUTE: session, names.TENANT_ATTRIBUTE: tenant}
    return [
        SearchAttributePair(SearchAttributeKey.for_keyword(name), value)
        for name, value in values.items()
        if value is not None
    ]


async def missing_attributes(client: Client) -> list[str]:
    """Return the standfast search attributes that a client's namespace lacks."""
    try:
        there = await client.operator_service.list_search_attributes(
            ListSearchAttributesRequest(namespace=client.namespace)
        )
    except RPCError as error:
        if error.status not in (RPCStatusCode.PERMISSION_DENIED, RPCStatusCode.UNIMPLEMENTED):
            raise
        return [name for name in names.SEARCH_ATTRIBUTES if not await _is_known(client, name)]
    return [name for name in names.SEARCH_ATTRIBUTES if name not in there.custom_attributes]


async def register_attributes(client: Client) -> bool:
    """Create the missing search attributes; False, and a message to the operator, if that is not allowed."""
    missing = list(names.SEARCH_ATTRIBUTES)
    try:
        if missing := await missing_attributes(client):
            await client.operator_service.add_search_attributes(
                AddSearchAttributesRequest(
                    namespace=client.namespace,
                    search_attributes={name: _INDEXED[names.SEARCH_ATTRIBUTES[name]] for name in missing},
                )
            )
    except RPCError as error:
        _LOG.warning(
            "Runs are not searchable in namespace %s: it lacks %s, which this worker cannot create (%s). Create "
            "them as its operator, and restart the workers",
            client.namespace,
            ", ".join(missing),
            error.message,
        )
        return False
    return True


async def _is_known(client: Client, name: str) -> bool:
    try:
        await client.count_workflows(f"{name} IS NOT NULL AND WorkflowId = '{names.QUEUE_STORE}'")
    except RPCError as error:
        if error.status != RPCStatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True
