"""A conversation with a model in the terminal.

conversation    the messages and what is sent with them; the same over every transport
answer          one answer as it arrives, and how long it took
parameters      what `/set` sets
saved_chat      the file that `/save` writes and `/load` reads
attachments     images that a message names by path
slash_commands  the commands that begin with a slash
prompt_input    the line editor
display         how an answer looks
chat_loop       one answer, or a conversation until the user exits
"""
