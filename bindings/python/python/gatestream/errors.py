"""The exceptions of gatestream."""


class GatestreamError(Exception):
    """The base of all exceptions of gatestream."""


class ModelError(GatestreamError, ValueError):
    """A file or weights that are not a supported model."""


class PlanError(GatestreamError, ValueError):
    """A plan that is damaged, or for another model or machine."""


class InputError(GatestreamError, ValueError):
    """Arrays or options that do not fit. Nothing has been computed."""


class TooLargeError(InputError, MemoryError):
    """Arrays or options that there is no memory for. Nothing has been computed."""


class ForkedError(GatestreamError, RuntimeError):
    """An object that was made before the process was forked: make a new one in the child."""


class RequestError(GatestreamError, RuntimeError):
    """A request to an engine that ended without an answer."""


class OverloadedError(RequestError):
    """A request that was not accepted, because of a limit or because the engine closes."""


class RequestCancelledError(RequestError):
    """A request that was cancelled."""


class DeadlineError(RequestError, TimeoutError):
    """A request whose deadline passed before its answer."""
