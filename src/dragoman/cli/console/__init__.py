"""What commands share: flags, errors, text that is safe for a terminal, tables, questions."""
