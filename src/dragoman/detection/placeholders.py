"""What a model reads besides text, and what its template writes for it, for people to read."""

from __future__ import annotations

from dragoman.detection.sources import TemplateSource
from dragoman.prompt.template.media_markers import find_placeholders


def describe_media(source: TemplateSource) -> dict[str, list[str]]:
    """List what the model reads, and the placeholders of the template by role."""
    return {
        "reads": list(source.modalities),
        "placeholders": [
            f"{entry.role}: {entry.kind} as {entry.text}"
            for entry in find_placeholders(source.template)
        ],
    }
