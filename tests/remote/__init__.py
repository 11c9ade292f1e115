"""Remote tools with software of others: the official conformance suite, and a server from npm.

`make test-mcp` installs them. `test_conformance` lists the scenarios of the suite that apply.
"""
