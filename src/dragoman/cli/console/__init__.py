"""What commands print and how they ask: text that is safe for a terminal, tables, questions."""
