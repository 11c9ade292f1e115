"""Templates in Go's language, as Ollama's Modelfiles have them, converted to Jinja.

    lexer       actions and the text between them, and the words of an action
    nodes       what a template is parsed to
    parser      parses a template
    scopes      the names that variables of the template have in Jinja
    expression  pipelines, fields and functions, written as expressions of Jinja
    convert     writes the Jinja template

The result passes everything that a model's own template passes: sandbox, budget, special tokens,
detection. Only the functions and fields that Ollama's templates use are known. A template that uses
another one is refused by its name.
"""

from dragoman.prompt.go_template.convert import SUFFIX as SUFFIX
from dragoman.prompt.go_template.convert import convert_go_template as convert_go_template
from dragoman.prompt.go_template.convert import is_go_template as is_go_template
from dragoman.prompt.go_template.convert import writes_suffix as writes_suffix
