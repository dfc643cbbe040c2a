"""Who may do what: principals, roles, tokens, and the record of what was changed by whom."""
