class SetupError(Exception):
    """A problem that a person has to solve; the message says what is wrong and what to do."""
