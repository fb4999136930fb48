"""Pages in a real browser."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--enable-logging=stderr",
]


def open_page(page: Path | str, profile: Path, *flags: str) -> str:
    """Open a file or an address, run its scripts and return the document; the browser has nothing to complain about."""
    names = ("chromium", "chromium-browser", "google-chrome")
    browser = next((found for name in names if (found := shutil.which(name))), None)
    if browser is None:
        reason = "no Chromium on this machine to open the page with"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    address = page if isinstance(page, str) else page.as_uri()
    command = [browser, *FLAGS, *flags, f"--user-data-dir={profile}", "--dump-dom", address]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ":CONSOLE" not in result.stderr, result.stderr
    return result.stdout
