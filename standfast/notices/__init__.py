"""Messages to people about waiting items: links, Slack, Teams, and the bots that post them."""
