"""Catalogues of Iceberg tables, by pyiceberg.

1. No catalogue over HTTP is waited for without an end: for a connection `CONNECT_S`, for more of an answer `ANSWER_S`.
   pyiceberg itself would wait for ever for one whose packets go nowhere, and with it the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Final

from pyiceberg.catalog import AVAILABLE_CATALOGS, Catalog, CatalogType, load_catalog
from pyiceberg.catalog.rest import RestCatalog
from requests import Session

from warren.lake.job import DEFAULT_CATALOG
from warren.lake.object_stores import catalog_properties

CONNECT_S: Final = 10.0
ANSWER_S: Final = 60.0


class TimedRestCatalog(RestCatalog):
    """A REST catalogue that is not waited for longer than `timeouts_s`, for a connection and for an answer."""

    timeouts_s = (CONNECT_S, ANSWER_S)

    def _config_headers(self, session: Session) -> None:
        """Set the timeouts of requests: a session comes here first, before it asks for a token."""
        session.request = partial(session.request, timeout=self.timeouts_s)  # type: ignore[method-assign]
        super()._config_headers(session)


# What pyiceberg looks for the types in, also those of catalogues that its configuration names.
AVAILABLE_CATALOGS[CatalogType.REST] = lambda name, properties: TimedRestCatalog(name, **properties)


def open_catalog(given: Mapping[str, str]) -> Catalog:
    """Return the catalogue with the properties `given`, and with the environment's settings for object stores."""
    return load_catalog(**catalog_properties({"name": DEFAULT_CATALOG, **given}))
