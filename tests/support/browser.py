"""Debian's Chromium, driven over its DevTools pipe: no package is needed for that, and no port is opened."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.support.requirements import skip_without

CHROMIUM = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
INSTALL = "apt-get install -y --no-install-recommends chromium"
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--hide-scrollbars",
)


def need_chromium() -> None:
    skip_without("Chromium", [] if CHROMIUM else [INSTALL])


class Browser:
    """One browser with one page at a time."""

    def __init__(self) -> None:
        self.profile = tempfile.mkdtemp(prefix="ingot-chromium-")
        theirs_in, self.out = os.pipe()
        self.into, theirs_out = os.pipe()
        ends = (theirs_in, theirs_out)

        # It speaks on descriptors 3 and 4; a shell in between moves them there without code between fork and exec.
        shell = f'exec 3<&{ends[0]} 4>&{ends[1]}; exec "$@"'
        command = [
            "bash",
            "-c",
            shell,
            "bash",
            str(CHROMIUM),
            *FLAGS,
            f"--user-data-dir={self.profile}",
            "--remote-debugging-pipe",
            "about:blank",
        ]
        self.process = subprocess.Popen(command, pass_fds=ends, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for end in ends:
            os.close(end)
        self.numbers, self.rest, self.events = itertools.count(1), b"", list[dict[str, Any]]()
        self.session: str | None = None
        self.loaded = 0.0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for end in (self.out, self.into):
            os.close(end)
        shutil.rmtree(self.profile, ignore_errors=True)

    def _message(self, seconds: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            if not select.select([self.into], [], [], seconds)[0]:
                raise TimeoutError(f"Chromium said nothing for {seconds:.0f} s")
            got = os.read(self.into, 1 << 16)
            if not got:
                raise EOFError("Chromium is gone")
            self.rest += got
        line, _, self.rest = self.rest.partition(b"\0")
        return dict(json.loads(line))

    def ask(self, method: str, seconds: float = 60, **params: Any) -> dict[str, Any]:
        number, asked = next(self.numbers), {"method": method, "params": params}
        session = {"sessionId": self.session} if self.session else {}
        os.write(self.out, json.dumps({"id": number, **asked, **session}).encode() + b"\0")
        while (said := self._message(seconds)).get("id") != number:
            self.events.append(said)
        assert "error" not in said, said["error"]
        return dict(said["result"])

    def open(
        self, file: Path, *, width: int = 1280, height: int = 900, dark: bool = False, until: str = "ready"
    ) -> None:
        """Go to the file and wait until its graph is laid out."""
        if self.session:
            self.ask("Page.close")
        self.session, self.events = None, []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        narrow = width < 600
        self.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=2 if narrow else 1,
            mobile=narrow,
        )
        self.ask(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}],
        )
        start = time.monotonic()
        went = self.ask("Page.navigate", url=file.as_uri())
        assert "errorText" not in went, went
        self.wait(READY[until])
        self.loaded = time.monotonic() - start

    def wait(self, condition: str, seconds: float = 60) -> None:
        end = time.monotonic() + seconds
        while not self.run(f"Boolean({condition})"):
            assert time.monotonic() < end, f"never: {condition}; {self.complaints()}"
            time.sleep(0.05)

    def run(self, code: str) -> Any:
        done = self.ask("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def complaints(self) -> list[str]:
        """Errors and warnings of the console, exceptions, and requests for anything but the page itself."""
        self.run("1")  # what was said before this is here now
        return [text for event in self.events for text in _complaint(event)]

    def click(self, x: float, y: float) -> None:
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def type(self, text: str) -> None:
        self.ask("Input.insertText", text=text)

    def press(self, key: str) -> None:
        code = {"Enter": 13}[key]
        for kind in ("keyDown", "keyUp"):
            self.ask("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)

    def shoot(self, file: Path, *, whole: bool = False) -> None:
        shown = self.ask("Page.captureScreenshot", captureBeyondViewport=whole)["data"]
        file.write_bytes(base64.b64decode(shown))


READY = {
    "ready": "document.body && document.body.dataset.ready"
    " && (!document.querySelector('canvas') || document.querySelector('canvas').dataset.ready)",
    "shown": "document.body && document.body.dataset.ready",
}


def _complaint(event: dict[str, Any]) -> list[str]:
    method, params = event.get("method"), event.get("params", {})
    if method == "Runtime.exceptionThrown":
        return [json.dumps(params["exceptionDetails"])[:500]]
    if method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
        return [params["entry"]["text"]]
    if method == "Runtime.consoleAPICalled":
        return [f"console.{params['type']}"]
    if method == "Network.requestWillBeSent" and params["request"]["url"].partition(":")[0] not in ("file", "blob"):
        return [f"asked for {params['request']['url'][:200]}"]
    return []
