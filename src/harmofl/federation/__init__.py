"""How a federation runs: messages, the client's loop, the server's rounds, transports and records."""
