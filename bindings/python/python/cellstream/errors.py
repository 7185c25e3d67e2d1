"""The exceptions of cellstream."""


class CellstreamError(Exception):
    """The base of all exceptions of cellstream."""


class ModelError(CellstreamError, ValueError):
    """A file or weights that are not a supported model."""


class PlanError(CellstreamError, ValueError):
    """A plan that is damaged, or for another model or machine."""


class InputError(CellstreamError, ValueError):
    """Arrays or options that do not fit. Nothing has been computed."""


class TooLargeError(InputError, MemoryError):
    """Arrays or options that there is no memory for. Nothing has been computed."""


class ForkedError(CellstreamError, RuntimeError):
    """An object that was made before the process was forked: make a new one in the child."""


class RequestError(CellstreamError, RuntimeError):
    """A request to an engine that ended without an answer."""


class OverloadedError(RequestError):
    """A request that was not accepted, because of a limit or because the engine closes."""


class RequestCancelledError(RequestError):
    """A request that was cancelled."""


class DeadlineError(RequestError, TimeoutError):
    """A request whose deadline passed before its answer."""
