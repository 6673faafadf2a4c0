"""Agents on Temporal: a plugin for any worker, a client for any process, and a server to develop with."""

from standfast.temporal.activities.approval_links import ApprovalLinks
from standfast.temporal.activities.slack_messages import SlackButtons
from standfast.temporal.activities.teams_messages import TeamsButtons
from standfast.temporal.activities.webhooks import Webhook
from standfast.temporal.client.audits import OnRecord
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.connections import connect
from standfast.temporal.client.gate_contents import load_arguments, load_shown
from standfast.temporal.client.owners import Run
from standfast.temporal.client.servers import DevServer, dev_server
from standfast.temporal.client.starts import start_agent, start_pipeline
from standfast.temporal.client.user_clients import UserClient
from standfast.temporal.plugin import StandfastPlugin
from standfast.temporal.workflows.approvals import ApprovalResult, approval
from standfast.temporal.workflows.effects import execute_effect

__all__ = [
    "ApprovalLinks",
    "ApprovalResult",
    "DevServer",
    "OnRecord",
    "Run",
    "SlackButtons",
    "StandfastClient",
    "StandfastPlugin",
    "TeamsButtons",
    "UserClient",
    "Webhook",
    "approval",
    "connect",
    "dev_server",
    "execute_effect",
    "load_arguments",
    "load_shown",
    "start_agent",
    "start_pipeline",
]
