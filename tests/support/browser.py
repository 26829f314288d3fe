"""A headless Chromium, driven through its own pipe: no driver, no package, no network.

    with Browser.start(binary, folder) as browser:
        page = browser.open(path, width=390, height=844, dark=True)
        page.evaluate("document.title")

As a script it takes pictures of a report: `python tests/support/browser.py REPORT.html FOLDER`.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--hide-scrollbars",
    "--mute-audio",
    "--disable-extensions",
    "--remote-debugging-pipe",
)


def find() -> str | None:
    """The path of a Chromium on this machine, or None."""
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One running browser and the messages it sends."""

    def __init__(self, process: subprocess.Popen[bytes], write_to: int, read_from: int) -> None:
        self.process = process
        self.write_to = write_to
        self.read_from = read_from
        self.events: list[dict[str, Any]] = []
        self._count = 0
        self._rest = b""

    @classmethod
    @contextmanager
    def start(cls, binary: str) -> Iterator[Browser]:
        """Starts the browser with a profile of its own and ends it with the context."""
        with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
            in_read, in_write = _pipe()
            out_read, out_write = _pipe()

            def connect() -> None:
                os.dup2(in_read, 3)
                os.dup2(out_write, 4)

            command = [binary, *FLAGS, f"--user-data-dir={profile}", "about:blank"]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                close_fds=False,
                preexec_fn=connect,
            )
            os.close(in_read)
            os.close(out_write)
            browser = cls(process, in_write, out_read)
            try:
                yield browser
            finally:
                process.terminate()
                try:
                    process.wait(timeout=10)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
                os.close(in_write)
                os.close(out_read)

    def call(self, method: str, session: str | None = None, timeout: float = 60.0, **parameters: Any) -> dict[str, Any]:
        """Sends a command and gives its result; events that come meanwhile are kept in `events`."""
        self._count += 1
        number = self._count
        message = {"id": number, "method": method, "params": parameters} | ({"sessionId": session} if session else {})
        _write_all(self.write_to, json.dumps(message).encode() + b"\0")
        end = time.monotonic() + timeout
        while True:
            answer = self._next(end)
            if answer is None:
                raise TimeoutError(f"the browser did not answer {method} within {timeout} s")
            if answer.get("id") == number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def wait_for(self, method: str, session: str, timeout: float = 60.0) -> None:
        """Waits until an event has come, and takes it."""
        end = time.monotonic() + timeout
        while True:
            for event in self.events:
                if event.get("method") == method and event.get("sessionId") == session:
                    self.events.remove(event)
                    return
            answer = self._next(end)
            if answer is None:
                raise TimeoutError(f"the browser did not say {method} within {timeout} s")
            self.events.append(answer)

    def open(self, path: Path, *, width: int, height: int, dark: bool = False, script: bool = True) -> Page:
        """Loads a file at a width in CSS pixels, light or dark, with JavaScript or without."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session, target, width, height)
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable", session)
        page.call("Network.emulateNetworkConditions", offline=True, latency=0, downloadThroughput=0, uploadThroughput=0)
        page.call("Emulation.setScriptExecutionDisabled", value=not script)
        page.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        page.scheme(dark)
        page.call("Page.navigate", url=path.resolve().as_uri())
        self.wait_for("Page.loadEventFired", session)
        return page

    def _next(self, end: float) -> dict[str, Any] | None:
        while b"\0" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self.read_from], [], [], left)[0]:
                return None
            found = os.read(self.read_from, 1 << 20)
            if not found:
                raise RuntimeError("the browser ended")
            self._rest += found
        message, self._rest = self._rest.split(b"\0", 1)
        return dict(json.loads(message))


@dataclass
class Page:
    """A loaded page."""

    browser: Browser
    session: str
    target: str
    width: int
    height: int
    closed: bool = field(default=False)

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(method, self.session, **parameters)

    def scheme(self, dark: bool) -> None:
        """Switches between light and dark."""
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", media="", features=features)

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and requests that are not for the page's own file."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") != self.session:
                continue
            method, values = event["method"], event["params"]
            if method == "Runtime.exceptionThrown":
                found.append(str(values["exceptionDetails"]))
            elif method == "Runtime.consoleAPICalled" and values["type"] in ("error", "warning", "assert"):
                found.append(str(values["args"]))
            elif method == "Log.entryAdded" and values["entry"]["level"] in ("error", "warning"):
                found.append(str(values["entry"]["text"]))
            elif method == "Network.requestWillBeSent" and not values["request"]["url"].startswith(("file:", "data:")):
                found.append(f"asked for {values['request']['url']}")
        return found

    def picture(self, path: Path, whole: bool = True) -> None:
        """Saves a PNG of the whole page, or of what is on the first screen."""
        parameters: dict[str, Any] = {"format": "png"}
        if whole:
            height = self.evaluate("document.documentElement.scrollHeight")
            parameters["clip"] = {"x": 0, "y": 0, "width": self.width, "height": height, "scale": 1}
            parameters["captureBeyondViewport"] = True
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **parameters)["data"]))

    def print(self, path: Path) -> None:
        """Saves the page as it prints, as a PDF on A4."""
        self.call("Emulation.setEmulatedMedia", media="print", features=[])
        answer = self.call("Page.printToPDF", printBackground=True, paperWidth=8.27, paperHeight=11.69)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self) -> None:
        if not self.closed:
            self.browser.call("Target.closeTarget", targetId=self.target)
            self.closed = True


def _pipe() -> tuple[int, int]:
    """A pipe whose ends lie above 9, out of the way of 3 and 4, and stay open in no other program."""
    ends = os.pipe()
    high = tuple(fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return high[0], high[1]


def _write_all(end: int, data: bytes) -> None:
    while data:
        data = data[os.write(end, data) :]


def main(report: Path, folder: Path) -> None:
    """Pictures of the report at desktop and phone width, light and dark, and as it prints."""
    binary = find()
    if binary is None:
        raise SystemExit(f"no browser found: one of {', '.join(NAMES)} is needed")
    folder.mkdir(parents=True, exist_ok=True)
    with Browser.start(binary) as browser:
        for name, width, height in (("desktop", 1280, 800), ("phone", 390, 844)):
            for dark in (False, True):
                page = browser.open(report, width=width, height=height, dark=dark)
                stem = f"{name}-{'dark' if dark else 'light'}"
                page.picture(folder / f"{stem}-first.png", whole=False)
                page.picture(folder / f"{stem}.png")
                print(stem, *page.complaints())
                page.close()
        page = browser.open(report, width=1280, height=800)
        page.print(folder / "print.pdf")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
