"""A real Chromium without a window, driven by the DevTools protocol over a web socket.

Synchronous, for tests: one browser with a profile of its own, one tab at a time. What a page logs as an
error, and every exception that it throws, is kept in `errors`.
"""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import aiohttp

if TYPE_CHECKING:
    from collections.abc import Coroutine

START_SECONDS: Final = 60.0
ANSWER_SECONDS: Final = 60.0

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-port=0",
)


def missing() -> str | None:
    """Why there is no Chromium; None: there is."""
    if _program() is None:
        return "no Chromium here (Debian's package is `chromium`)"
    return None


def _program() -> str | None:
    return (
        shutil.which("chromium")
        or shutil.which("chromium-browser")
        or shutil.which("google-chrome")
    )


class Chromium:
    """A browser with one tab."""

    def __init__(self, profile: Path) -> None:
        program = _program()
        assert program is not None, missing()
        self.errors: list[str] = []
        self.requested: list[str] = []
        """Addresses that were asked for."""
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._number = 0
        self._log = (profile.parent / "chromium.log").open("wb")
        self._process = subprocess.Popen(
            [program, *FLAGS, f"--user-data-dir={profile}", "about:blank"],
            stdout=self._log,
            stderr=self._log,
        )
        self._profile = profile

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self._run(self._connect())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def _end(self) -> None:
        with suppress(Exception):
            self._run(self._close())
        self._process.kill()
        self._process.wait()
        self._log.close()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(ANSWER_SECONDS + 5)

    async def _connect(self) -> None:
        port_file = self._profile / "DevToolsActivePort"
        ends_at = time.monotonic() + START_SECONDS
        while not port_file.exists() or "\n" not in port_file.read_text():
            assert self._process.poll() is None, "Chromium ended; see chromium.log"
            assert time.monotonic() < ends_at, "Chromium opens no port"
            await asyncio.sleep(0.05)
        port = int(port_file.read_text().splitlines()[0])
        self._session = aiohttp.ClientSession()
        async with self._session.get(f"http://127.0.0.1:{port}/json/list") as answer:
            pages = [each for each in await answer.json() if each["type"] == "page"]
        self._socket = await self._session.ws_connect(
            pages[0]["webSocketDebuggerUrl"], max_msg_size=0
        )
        self._listening = asyncio.create_task(self._listen())
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self._command(f"{domain}.enable", {})

    async def _close(self) -> None:
        with suppress(Exception):
            await asyncio.wait_for(self._command("Browser.close", {}), 5)
        self._listening.cancel()
        await self._socket.close()
        await self._session.close()

    async def _listen(self) -> None:
        async for message in self._socket:
            told = json.loads(message.data)
            if "id" in told:
                waiting = self._waiting.pop(told["id"], None)
                if waiting is not None and not waiting.done():
                    waiting.set_result(told)
                continue
            self._note(told["method"], told["params"])

    def _note(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            what = details.get("exception", {}).get("description", details["text"])
            self.errors.append(str(what))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif method == "Page.javascriptDialogOpening":
            self.errors.append(f"dialog: {params['message']}")

    async def _command(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        self._number += 1
        waiting = self._waiting[self._number] = self._loop.create_future()
        await self._socket.send_str(
            json.dumps({"id": self._number, "method": method, "params": params})
        )
        told = await asyncio.wait_for(waiting, ANSWER_SECONDS)
        assert "error" not in told, (method, told["error"])
        result: dict[str, Any] = told["result"]
        return result

    def command(self, method: str, **params: Any) -> dict[str, Any]:
        """A command of the protocol, and its result."""
        result: dict[str, Any] = self._run(self._command(method, params))
        return result

    def open(self, url: str) -> None:
        """Go there, as if the address had been typed."""
        self.command("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise what it comes to."""
        result = self.command(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, (expression, result["exceptionDetails"])
        return result["result"].get("value")

    def until(self, expression: str, seconds: float = 60.0) -> Any:
        """Wait until the expression is true in the page; returns its value, True for an element."""
        ends_at = time.monotonic() + seconds
        wanted = f"(v => v instanceof Node ? true : v)({expression})"
        while not (value := self.ask(wanted)):
            if time.monotonic() >= ends_at:
                text = self.ask("document.body.innerText")
                raise AssertionError(f"never true: {expression}\n{self.errors}\n{text[:4000]}")
            time.sleep(0.05)
        return value

    def renderer_pids(self) -> list[int]:
        """The processes that run pages, of which one is the tab's; Linux only."""
        processes = [self._process.pid]
        for pid in processes:
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            processes.extend(map(int, children))
        return [
            pid
            for pid in processes
            if b"--type=renderer" in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]

    def size(self, width: int, height: int, *, is_phone: bool = False) -> None:
        self.command(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=is_phone,
        )

    def prefer(self, scheme: str) -> None:
        """`light` or `dark`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.command("Emulation.setEmulatedMedia", features=features)

    def picture(self, path: Path) -> None:
        """What is to be seen now, as a PNG file."""
        shot = self.command("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(shot["data"]))


READY: Final = "document.querySelector('main').dataset.ready"
"""In our page: when the broker took what the view shows; undefined before that."""


def click(browser: Chromium, selector: str) -> None:
    """Click on the first such element, once it is there."""
    browser.until(f"document.querySelector({json.dumps(selector)})")
    browser.ask(f"document.querySelector({json.dumps(selector)}).click()")
