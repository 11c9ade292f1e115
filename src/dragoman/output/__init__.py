"""Text in pieces in, spans on channels out: the one parser of what models say."""
