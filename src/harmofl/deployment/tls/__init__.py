"""What engines over TCP and TLS have in common: addresses, certificates, and the checks of both."""
