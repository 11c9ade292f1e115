"""Turns: what a request sets going, from the moment it is understood to its last frame.

`work` says what a piece of work is; a plain answer is one. A `turn` is a response of the Responses
dialect: it begins where earlier ones ended (`history`), takes as many rounds of the model as its
remote tools ask for (`remote`), and is kept in the store when it is done. The `desk` begins turns,
runs those in the `background` that nobody waits for, and finds what was kept. A `feed` has the
frames of a response that runs in the background, for whoever wants to hear it, now or later.
"""
