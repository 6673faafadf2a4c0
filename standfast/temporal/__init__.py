"""Agents on Temporal: a plugin for any worker, a client for any process, and a server to develop with."""

from standfast.temporal.approvals import approval
from standfast.temporal.client import StandfastClient, start_agent, start_pipeline
from standfast.temporal.connections import connect
from standfast.temporal.links import ApprovalLinks
from standfast.temporal.plugin import StandfastPlugin
from standfast.temporal.servers import dev_server
from standfast.temporal.user_clients import UserClient
from standfast.temporal.webhooks import Webhook

__all__ = [
    "ApprovalLinks",
    "StandfastClient",
    "StandfastPlugin",
    "UserClient",
    "Webhook",
    "approval",
    "connect",
    "dev_server",
    "start_agent",
    "start_pipeline",
]
