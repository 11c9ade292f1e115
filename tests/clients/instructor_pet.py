"""Asks a server for a typed answer with `instructor`; run by a Python that has it.

Arguments: the URL of the server, the model, the mode. Prints the answer as JSON.
"""

from __future__ import annotations

import sys

import instructor
from openai import OpenAI

from tests.clients.pet import Pet


def main(url: str, model: str, mode: str) -> None:
    client = OpenAI(base_url=url, api_key="none", max_retries=0, timeout=120)
    typed = instructor.from_openai(client, mode=instructor.Mode[mode])
    pet = typed.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Invent a pet."}],
        response_model=Pet,
        max_retries=0,
        temperature=1,
        seed=3,
        max_tokens=300,
    )
    print(pet.model_dump_json())


if __name__ == "__main__":
    main(*sys.argv[1:])
