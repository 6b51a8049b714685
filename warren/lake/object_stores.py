"""The settings of an object store for the libraries of tables: from the environment, as other programs read them.

    variable                                pyiceberg             deltalake
    AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL   s3.endpoint           reads it, and refuses http:// unless it is allowed
    AWS_REGION, AWS_DEFAULT_REGION          s3.region             reads it
    AWS_ACCESS_KEY_ID, ...                  pyarrow reads them    reads them

1. A setting that was given, as a property or an option, wins. The environment supplies only settings that were not
   given.
2. The place of a store is sent to other machines, which may have another environment. They find the login for it
   themselves, unless it was given.
3. Without a region pyiceberg would ask Amazon for that of the bucket, wherever the endpoint is.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
_REGIONS: Final = ("AWS_REGION", "AWS_DEFAULT_REGION")
_GIVEN_ENDPOINTS: Final = ("aws_endpoint_url_s3", "aws_endpoint_url", "aws_endpoint", "endpoint_url", "endpoint")
_GIVEN_REGIONS: Final = ("aws_region", "aws_default_region", "region", "default_region")
_ALLOW_HTTP: Final = "AWS_ALLOW_HTTP"


def catalog_properties(given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the properties of an Iceberg catalogue with the environment's settings for S3."""
    found = dict(given)
    for key, names in (("s3.endpoint", _ENDPOINTS), ("s3.region", _REGIONS)):
        text = _maybe_first(names, environment)
        if text is not None:
            found.setdefault(key, text)
    return found


def delta_storage(url: str, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the storage options of the Delta table at `url`: an endpoint without TLS that was named is meant."""
    found = dict(given)
    small = {key.lower(): text for key, text in given.items()}
    endpoint = _maybe_first(_GIVEN_ENDPOINTS, small) or _maybe_first(_ENDPOINTS, environment) or ""
    if (
        url.startswith(("s3://", "s3a://"))
        and endpoint.startswith("http://")
        and not {"aws_allow_http", "allow_http"} & small.keys()
    ):
        found[_ALLOW_HTTP] = "true"
    return found


def with_environment(url: str, given: Mapping[str, str], environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the storage options of a Delta table with the environment's place of S3."""
    found = dict(given)
    if url.startswith(("s3://", "s3a://")):
        small = {key.lower() for key in given}
        for names, others in ((_ENDPOINTS, _GIVEN_ENDPOINTS), (_REGIONS, _GIVEN_REGIONS)):
            text = _maybe_first(names, environment)
            if text is not None and not small & set(others):
                found[names[-1]] = text
    return found


def _maybe_first(names: tuple[str, ...], values: Mapping[str, str]) -> str | None:
    return next((values[name] for name in names if values.get(name)), None)
