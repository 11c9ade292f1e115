"""Commands about output formats: `explain`, `formats` and `new-format`."""
