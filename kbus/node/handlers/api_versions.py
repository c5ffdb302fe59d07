"""ApiVersions, v0–v4: which APIs in which versions. Exactly what the dispatch table serves."""

import re
from datetime import timedelta
from typing import Final

from kbus.node.broker import Broker
from kbus.node.connection import Outcome, RequestContext
from kbus.protocol.api import ADVERTISED, Entity
from kbus.protocol.errors import ErrorCode

_SOFTWARE_NAME: Final = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


def handle(broker: Broker, context: RequestContext, request: Entity | None) -> Outcome:
    """`request` is None if the client asked in a version that is not served: it learns which are."""
    build = context.schema.build
    error = ErrorCode.none
    if request is None:
        error = ErrorCode.unsupported_version
    elif context.version >= 3 and not all(
        _SOFTWARE_NAME.fullmatch(text)
        for text in (request.client_software_name, request.client_software_version)
    ):
        error = ErrorCode.invalid_request
    return context.schema.response(
        error_code=error,
        api_keys=tuple(
            build("ApiVersion", api_key=key, min_version=versions.min, max_version=versions.max)
            for key, versions in sorted(ADVERTISED.items())
        ),
        throttle_time=timedelta(0),
    )
