"""Serving in the foreground: log lines that never block, and engines that a program brings."""
