"""One call of the command line: its global options, and the settings and the application that follow."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from queuety import loading
from queuety.cli import logs
from queuety.settings import Settings

if TYPE_CHECKING:
    from queuety.app import Queuety

log = logging.getLogger("queuety.settings")


@dataclass(slots=True)
class Invocation:
    """What stood before the command. options: by the settings' keys, as text; None: not given."""

    options: dict[str, object] = field(default_factory=dict)

    def settings(self, **more: object) -> Settings:
        """All settings as given by option, environment and file; sets up logging and tells the warnings.

        more: options of the command, by the settings' keys.
        """
        settings = Settings.load({**self.options, **more})
        logs.configure(settings.log_level, settings.log_format)
        for warning in settings.warnings:
            log.warning("%s", warning)
        return settings

    @contextlib.contextmanager
    def caller(self, *, handlers: bool = False, **more: object) -> Iterator[Queuety]:
        """An application to call verbs on, closed afterwards.

        handlers: import the user's application, if one is named, so that its handlers are known. Without, it is
        imported only to learn its database, when nothing else names one.
        """
        settings = self.settings(**more)
        from queuety.app import Queuety

        if settings.app and (handlers or settings.database_url is None):
            with contextlib.redirect_stdout(sys.stderr):  # what a module prints is talk, not our output
                app = loading.load(settings.app)
            settings = loading.adopt(settings, loading.own_settings(app))
        else:
            app = Queuety(settings.database_url)
        loading.bind(app, settings)
        try:
            yield app
        finally:
            app.close()


def current() -> Invocation:
    """The invocation that the running command belongs to."""
    found = click.get_current_context().find_object(Invocation)
    assert found is not None
    return found
