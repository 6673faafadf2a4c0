"""Agents on Temporal: a plugin for any worker, a client for any process, and a server to develop with."""

from standfast.notices.approval_links import ApprovalLinks
from standfast.notices.slack_messages import SlackButtons
from standfast.notices.teams_messages import TeamsButtons
from standfast.temporal.activities.gates.webhooks import Webhook
from standfast.temporal.client.board.gate_contents import load_arguments, load_shown
from standfast.temporal.client.clients import StandfastClient
from standfast.temporal.client.connections import connect
from standfast.temporal.client.history.audits import OnRecord
from standfast.temporal.client.queues.servers import DevServer, dev_server
from standfast.temporal.client.runs.owners import Run
from standfast.temporal.client.starts import start_agent, start_pipeline
from standfast.temporal.client.user_clients import UserClient
from standfast.temporal.plugin import StandfastPlugin
from standfast.temporal.workflows.gates.approvals import ApprovalResult, approval
from standfast.temporal.workflows.gates.effects import execute_effect

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
