"""The API under a FastAPI application, as `uvicorn tests.apps.mounted:site` serves it."""

from __future__ import annotations

from fastapi import FastAPI

from queuety import Queuety
from queuety.web import create_app

site = FastAPI()
site.mount("/queue", create_app(Queuety(), no_auth=True))
