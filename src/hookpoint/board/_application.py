"""Application: the board's routes."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from importlib.resources import files
from itertools import chain, islice
from pathlib import Path
from typing import Any

import anyio
from anyio.abc import TaskGroup
from anyio.to_thread import run_sync
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from hookpoint.board._curve_store import CurveStore
from hookpoint.board._indexer import Indexer
from hookpoint.board._request_guard import Access, RequestGuard
from hookpoint.board._run_control import SentCommand, control_of, rejection
from hookpoint.board._run_table import RunTable
from hookpoint.board._stream_watcher import StreamWatcher
from hookpoint.core.errors import HookpointError
from hookpoint.core.text.plain_values import plain
from hookpoint.run_folder.callback_rows import callback_rows
from hookpoint.run_folder.command_error import one_line
from hookpoint.run_folder.curve_csv import csv_lines, csv_lines_of_runs
from hookpoint.run_folder.describe_event import describe_event
from hookpoint.run_folder.json_records import encoded
from hookpoint.run_folder.media.media_cache import MediaCache
from hookpoint.run_folder.media.tensorboard_media import Medium, NoTensorBoard, histogram_of, image_of
from hookpoint.run_folder.run_details import details_of, differences_of, settings_of
from hookpoint.run_folder.run_folder import SCALARS, RunFolder

logger = logging.getLogger("hookpoint")

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/board.js": ("board.js", "text/javascript; charset=utf-8"),
    "/board.css": ("board.css", "text/css; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
MAX_EVENTS = 2_000
MAX_STREAMED_RUNS = 100
PIXELS = (10, 4_000)
MAX_COMMANDS = 100  # maximum number of commands that can wait for an answer at the same time
WAIT_SECONDS = 3.0  # a request waits this long for the answer to a command; the stream reports a later answer
POLL_SECONDS, MAX_POLL_SECONDS = 0.02, 0.25  # initial and maximum polling interval
ALIVE_SECONDS = 15.0
READ_ONLY = "This board is read-only: it was started with --read-only."


class Board:
    """The server's components: the table of runs, the curves, and the thread that watches the runs."""

    def __init__(self, folders: list[Path], access: Access, *, cache: Path | None = None) -> None:
        self._access = access
        self._indexer = Indexer(cache)
        self._table = RunTable(folders)
        self._store = CurveStore(self._indexer)
        self._media_cache = MediaCache()
        self._watcher = StreamWatcher(self._table, self._store)
        self._commands: TaskGroup | None = None  # follows the commands that wait for an answer
        self._waiting = 0
        self._is_stopped = False
        routes = [
            *(Route(path, _static(*page), methods=["GET"]) for path, page in PAGE.items()),
            Route("/api/runs", self._runs),
            Route("/api/settings", self._settings),
            Route("/api/run/{key}", self._run),
            Route("/api/run/{key}/events", self._events),
            Route("/api/run/{key}/series", self._series),
            Route("/api/run/{key}/curve.csv", self._csv),
            Route("/api/run/{key}/media", self._media),
            Route("/api/run/{key}/image", self._image),
            Route("/api/run/{key}/histogram", self._histogram),
            Route("/api/run/{key}/control", self._control, methods=["POST"]),
            Route("/api/curve.csv", self._csv_of_runs),
            Route("/api/diff", self._diff),
            Route("/api/stream", self._stream),
        ]
        self.app: ASGIApp = RequestGuard(Starlette(routes=routes, lifespan=self._lifespan), access)

    def stop(self) -> None:
        """End the streams and the waiting requests so that the server can exit. Signal handlers may call this method."""
        self._is_stopped = True
        self._watcher.stop()

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        async with anyio.create_task_group() as group:
            group.start_soon(run_sync, self._table.update)  # read the runs in the background while the browser starts
            self._commands = group
            yield
            self._is_stopped = True
        await run_sync(self._watcher.join)
        await run_sync(self._indexer.stop)

    # Reading

    def _runs(self, request: Request) -> Response:
        self._table.update()
        # Read the version before the rows. If the rows then change, the page has the older version and requests them again.
        version = self._table.version
        return _json({"version": version, "runs": self._table.rows(), "read_only": self._access.read_only})

    def _settings(self, request: Request) -> Response:
        self._table.update()
        return _json({"settings": self._table.settings()})

    def _run(self, request: Request) -> Response:
        run = RunFolder(self._path(request))
        try:
            details = details_of(run, 0)
            del details["events"]
            controls, reason = (None, READ_ONLY) if self._access.read_only else control_of(run)
            more: dict[str, Any] = {"settings": settings_of(run), "callbacks": callback_rows(run.facts)}
            return _json(
                {"key": request.path_params["key"], **details, **more, "controls": controls, "controls_reason": reason}
            )
        except Exception as error:
            logger.warning("%s cannot be read", run.path, exc_info=True)
            raise HTTPException(500, f"{type(error).__name__}: {one_line(str(error))}") from error

    def _events(self, request: Request) -> Response:
        newest = list(islice(RunFolder(self._path(request)).events(), MAX_EVENTS))[::-1]
        return _json({"events": [{**event, "text": describe_event(event)} for event in newest]})

    def _series(self, request: Request) -> Response:
        path, query = self._path(request), request.query_params
        low, high = _number(query.get("from"), -math.inf), _number(query.get("to"), math.inf)
        pixels = int(min(max(_number(query.get("px"), 600), PIXELS[0]), PIXELS[1]))
        names = query.getlist("name") or None
        answer = self._store.of(request.path_params["key"], path).answer(names, low, high, pixels)
        # Do not use _json here: the answer already contains only JSON types, and checking it again is slow.
        return Response(encoded(answer), media_type="application/json")

    def _csv(self, request: Request) -> Response:
        path, query = self._path(request), request.query_params
        name, at = query.get("name", ""), query.get("at", "step")
        return _csv(csv_lines(path / SCALARS, name, at), name, at)

    def _csv_of_runs(self, request: Request) -> Response:
        query = request.query_params
        name, at = query.get("name", ""), query.get("at", "step")
        runs = [(self._table.label(key), path / SCALARS) for key, path in self._paths(request)]
        return _csv(csv_lines_of_runs(runs, name, at), name, at)

    def _media(self, request: Request) -> Response:
        media = self._media_in(request)
        return _json({"media": [{name: getattr(one, name) for name in ("kind", "name", "step", "time")} for one in media]})

    def _image(self, request: Request) -> Response:
        image = image_of(self._medium("image", request))
        if image is None:
            raise HTTPException(404, "this is not a PNG")
        return Response(image, media_type="image/png")

    def _histogram(self, request: Request) -> Response:
        return _json(histogram_of(self._medium("histogram", request)))

    def _media_in(self, request: Request) -> list[Medium]:
        try:
            return self._media_cache.media_of(self._path(request))
        except NoTensorBoard as error:
            raise HTTPException(501, str(error)) from None

    def _medium(self, kind: str, request: Request) -> Medium:
        """Return the image or histogram that a request names. If more than one matches, return the last one."""
        name, step = request.query_params.get("name"), request.query_params.get("step")
        media = self._media_in(request)
        named = [one for one in media if (one.kind, one.name) == (kind, name) and step in (None, str(one.step))]
        if not named:
            raise HTTPException(404, f"there is no such {kind}")
        return named[-1]

    def _diff(self, request: Request) -> Response:
        runs = [(key, RunFolder(path)) for key, path in self._paths(request)]
        return _json({"runs": [key for key, _ in runs], "settings": differences_of([run for _, run in runs])})

    # Commands

    async def _control(self, request: Request) -> Response:
        path, key = self._path(request), request.path_params["key"]
        try:
            command = json.loads(await request.body())
            do, args, expect = command["do"], command.get("args", {}), command.get("expect")
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            raise HTTPException(400, 'expected {"do": "...", "args": {...}, "expect": {...}}') from None
        if not isinstance(do, str) or not isinstance(args, dict) or not isinstance(expect, dict | None):
            raise HTTPException(400, "'do' must be a string; 'args' and 'expect' must be objects")
        if self._waiting >= MAX_COMMANDS:
            raise HTTPException(503, f"{MAX_COMMANDS} commands are already waiting for an answer")
        return _json(await self._answer_to(path, key, do, args, expect))

    async def _answer_to(self, path: Path, key: str, do: str, args: dict[str, Any], expect: dict[str, Any] | None) -> Any:
        """Send a command, and return its answer.

        If the run does not answer within WAIT_SECONDS, return the status "waiting". The stream reports the answer later.
        """
        self._waiting += 1
        try:
            sent = await run_sync(SentCommand, path, do, args, expect)
        except BaseException as error:
            self._waiting -= 1
            if isinstance(error, HookpointError | OSError):
                return rejection(error)
            raise
        answers: list[dict[str, Any]] = []
        is_answered = anyio.Event()

        async def follow() -> None:
            pause = POLL_SECONDS
            try:
                while not self._is_stopped:
                    if (answer := await run_sync(sent.answer)) is not None:
                        answers.append(answer)
                        self._watcher.publish("answer", {"run": key, "do": do, "id": sent.id, **answer}, key)
                        return
                    await anyio.sleep(pause)
                    pause = min(pause * 1.1, MAX_POLL_SECONDS)
            except Exception:  # an error here would end the task group, and with it the tasks of all other commands
                logger.exception("the answer to %s could not be read", do)
            finally:
                self._waiting -= 1
                is_answered.set()

        assert self._commands is not None
        self._commands.start_soon(follow)
        with anyio.move_on_after(WAIT_SECONDS):
            await is_answered.wait()
        return answers[0] if answers else {"id": sent.id, "status": "waiting", "text": "waiting for the run …"}

    # Messages

    async def _stream(self, request: Request) -> Response:
        subscription = self._watcher.subscribe(_keys(request)[:MAX_STREAMED_RUNS])

        async def messages() -> AsyncIterator[bytes]:
            try:
                yield b"retry: 1000\n\n"
                yield self._watcher.state(subscription)
                while True:
                    message: bytes | None = b": alive\n\n"
                    with anyio.move_on_after(ALIVE_SECONDS):
                        message = await subscription.next()
                    if message is None:
                        return
                    yield message
            finally:
                self._watcher.unsubscribe(subscription)

        return StreamingResponse(messages(), media_type="text/event-stream")

    def _path(self, request: Request) -> Path:
        """Return the folder of the run that a request names by its key."""
        path = self._table.path(request.path_params["key"])
        if path is None:
            raise HTTPException(404, "there is no such run")
        return path

    def _paths(self, request: Request) -> list[tuple[str, Path]]:
        """Return the keys and the folders of the runs that a request lists."""
        keys = _keys(request)
        found = [(key, path) for key in keys if (path := self._table.path(key)) is not None]
        if len(found) != len(keys):
            raise HTTPException(404, "there is no such run")
        return found


def _csv(lines: Iterator[str], name: str, at: str) -> Response:
    header, first = next(lines), next(filter(None, lines), None)
    if first is None:
        raise HTTPException(404, f"there are no values with name={name} and at={at}; at can be step, epoch or value")
    file_name = f"{re.sub('[^A-Za-z0-9_.-]+', '_', name).strip('._') or 'curve'}.csv"
    headers = {"content-disposition": f'attachment; filename="{file_name}"'}
    return StreamingResponse(chain((header, first), lines), headers=headers, media_type="text/csv; charset=utf-8")


def _static(name: str, kind: str) -> Callable[[Request], Response]:
    content = files("hookpoint.board").joinpath("page", name).read_bytes()
    return lambda request: Response(content, media_type=kind)


def _keys(request: Request) -> list[str]:
    return [key for key in request.query_params.get("runs", "").split(",") if key]


def _number(text: str | None, default: float) -> float:
    try:
        number = float(text) if text else default
    except ValueError:
        raise HTTPException(400, "from, to and px must be numbers") from None
    return default if math.isnan(number) else number


def _json(value: Any) -> Response:
    return Response(encoded(plain(value)), media_type="application/json")
