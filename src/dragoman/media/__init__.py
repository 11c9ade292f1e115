"""Pictures, sound and files of strangers: read, checked, decoded and normalised.

`service` does this for a chat, in this order, and stops at the first problem: number of items,
length, strict base64 (`data_url`), the kind of the content by its first bytes (`formats`), the size
that its header declares (`image_header`, `audio_header`), decoding in a worker process (`decoder`,
`worker`, `decode_image`, `decode_audio`, `decode_pdf`), hash. `fetch` is the only place that
fetches what a URL refers to, and only from hosts that the operator allows. `limits` has all limits.

The worker alone imports Pillow, soundfile and pypdf.
"""
