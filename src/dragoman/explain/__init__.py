"""What is shown about output formats.

report        the formats of one model's template, and how they were detected
format_list   all formats
"""
