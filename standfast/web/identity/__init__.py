"""Identity: people and their rights, sign-in, tokens, proxies, and the runs that each may see."""
