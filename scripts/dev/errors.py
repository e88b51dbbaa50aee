class Trouble(Exception):
    """Something a person has to mend: the message says what is wrong and how."""
