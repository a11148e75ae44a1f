"""A real browser on the page: Debian's chromium, driven by its driver, as a new user who has never been anywhere."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from selenium import webdriver
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

WITHIN_S = 30.0
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
    "--window-size=1360,900",
)  # fmt: skip

Seen = TypeVar("Seen")


class Browser:
    """One window."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def open(self, url: str) -> None:
        self.driver.get(url)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector: str) -> WebElement:
        return self.until(lambda: self.driver.find_element(By.CSS_SELECTOR, selector), selector)

    def texts(self, selector: str) -> list[str]:
        """What some elements say, drawn ones too."""
        script = "return [...document.querySelectorAll(arguments[0])].map((each) => each.textContent)"
        found: list[str] = self.driver.execute_script(script, selector)
        return found

    def run(self, script: str, *given: object) -> Any:
        return self.driver.execute_script(script, *given)

    def press(self, *keys: str) -> None:
        """Keys, one after the other, to whatever has the focus."""
        for key in keys:
            self.driver.switch_to.active_element.send_keys(key)

    def until(self, seen: Callable[[], Seen], what: str) -> Seen:
        """Wait until something is there and true; the page may redraw it meanwhile."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            try:
                found = seen()
            except (NoSuchElementException, StaleElementReferenceException):
                found = None
            if found:
                return found
            assert time.monotonic() < deadline, f"not on the page within {WITHIN_S:g} s: {what}; {self.story()}"
            time.sleep(0.05)

    def story(self) -> str:
        """What is on the page, and what the browser complains about."""
        return f"{self.one_text()[:1500]!r}, complaints: {self.complaints()}"

    def one_text(self) -> str:
        return str(self.run("return document.body.innerText"))

    def complaints(self) -> list[str]:
        """Errors of scripts, and what the page's policy has refused."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def requests(self) -> list[dict[str, Any]]:
        """Every request since this was asked last, as the browser itself tells it."""
        said = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [one["params"]["request"] for one in said if one["method"] == "Network.requestWillBeSent"]


@contextmanager
def browsing(profile: Path) -> Iterator[Browser]:
    """A browser of its own, until the end."""
    options = webdriver.ChromeOptions()
    options.binary_location = "/usr/bin/chromium"
    for flag in (*FLAGS, f"--user-data-dir={profile}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService("/usr/bin/chromedriver"))
    try:
        yield Browser(driver)
    finally:
        driver.quit()


ENTER, ESCAPE, DOWN = Keys.ENTER, Keys.ESCAPE, Keys.ARROW_DOWN
