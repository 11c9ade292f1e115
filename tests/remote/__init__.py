"""Remote tools against what others wrote: the official conformance suite, and a server from npm.

`make test-mcp` installs them. Which of the suite's scenarios apply is said in `test_conformance`.
"""
