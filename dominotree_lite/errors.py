"""The one exception a user's mistake raises. It knows nothing of where it is caught."""


class InputError(ValueError):
    """Bad input: one line that names the thing and says what to do. The command line exits with 2 on it."""
