"""Admission control: which requests run now, which wait, and which are rejected.

fair_queue   whose turn it is: owners, weights, priorities, cost in tokens
gate         places and slots of one engine, restarts
admission    the gates of all models
"""

from dragoman.pipeline.admission.admission import DEFAULT_QUEUE as DEFAULT_QUEUE
from dragoman.pipeline.admission.admission import Admission as Admission
from dragoman.pipeline.admission.fair_queue import SlotClaim as SlotClaim
from dragoman.pipeline.admission.fair_queue import TokenCounts as TokenCounts
from dragoman.pipeline.admission.gate import Gate as Gate
from dragoman.pipeline.admission.gate import Ticket as Ticket
