"""From a conversation to token ids, by the model's own template, safely."""
