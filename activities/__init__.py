"""The tools of this application. On Temporal, each is an activity type under its own name.

Each tool declares whether it may run twice. Reading and labelling may; messages to people may not.
"""

from activities.chat import post_message
from activities.documents import publish_document, read_document
from activities.feed import load_feed
from activities.issues import comment_on_issue, get_issue, label_issue, list_issues, search_issues
from activities.mail import send_email
from activities.people import ask_team

__all__ = [
    "ask_team",
    "comment_on_issue",
    "get_issue",
    "label_issue",
    "list_issues",
    "load_feed",
    "post_message",
    "publish_document",
    "read_document",
    "search_issues",
    "send_email",
]
