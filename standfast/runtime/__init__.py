"""The rules that both drivers share where they meet stores, threads and time."""
