"""Agents on Temporal: a plugin for any worker, a client for any process, and a server to develop with."""

from holdfast.temporal.approvals import approval
from holdfast.temporal.client import HoldfastClient, start_agent, start_pipeline
from holdfast.temporal.connections import connect
from holdfast.temporal.links import ApprovalLinks
from holdfast.temporal.plugin import HoldfastPlugin
from holdfast.temporal.servers import dev_server
from holdfast.temporal.user_clients import UserClient
from holdfast.temporal.webhooks import Webhook

__all__ = [
    "ApprovalLinks",
    "HoldfastClient",
    "HoldfastPlugin",
    "UserClient",
    "Webhook",
    "approval",
    "connect",
    "dev_server",
    "start_agent",
    "start_pipeline",
]
