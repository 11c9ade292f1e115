"""Makes an output format from one example answer, for `dragoman new-format`.

`readers` finds the formats that already read the answer. Otherwise `infer` proposes formats: it
looks for arguments in the answer (`arguments`: a JSON object, pairs of tags, Python calls), for the
name before them and the markers around both (`markup`), and tries the proposals with the parser.
The first one that reads the whole answer is the result. `source` writes it as a Python file,
`files` writes that file, its cases and its test into a working tree.
"""
