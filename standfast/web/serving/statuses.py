"""Maps errors to the HTTP statuses of the page."""

from temporalio.service import RPCError

from standfast.errors import NotConfirmedError, StandfastError, StoreError

NO_RUN = ("There is no run", "is not known as a standfast run")  # in the texts of errors


def status_of(error: StandfastError | RPCError) -> int:
    """Return the HTTP status for an error."""
    if isinstance(error, RPCError):
        return 502
    if isinstance(error, NotConfirmedError):
        return 504
    if isinstance(error, StoreError):
        return 503
    return 404 if any(words in str(error) for words in NO_RUN) else 409
