"""Talks with the page of `tessera serve --page` in Chromium, by selenium: answers and their probabilities, an error, a stop, a
key, and what a hostile model writes.

    check_page.py PORT [--key KEY] [--hostile TEXT] [--picture FILE]

The server's model answers "Say two" with "two 😀2" (tests/text/trained.cpp), or with --hostile "Say html" with that text.
Exit code 77: there is no browser or selenium.
"""

import argparse
import json
import re
import shutil
import sys
import time

try:
    from selenium import webdriver
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys
    from selenium.webdriver.support.ui import WebDriverWait
except ImportError:
    print("skipped: no selenium (pip install selenium)")
    sys.exit(77)
browser = shutil.which("chromium") or shutil.which("google-chrome")
driver_program = shutil.which("chromedriver")
if not browser or not driver_program:
    print("skipped: no browser (Debian: chromium chromium-driver)")
    sys.exit(77)

arguments = argparse.ArgumentParser()
arguments.add_argument("port", type=int)
arguments.add_argument("--key")
arguments.add_argument("--hostile")
arguments.add_argument("--picture")
arguments = arguments.parse_args()

options = webdriver.ChromeOptions()
options.binary_location = browser
for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=900,1000",
             "--no-first-run", "--disable-background-networking", "--disable-component-update"):
    options.add_argument(word)
options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
page = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver_program))
page.set_script_timeout(60)


def at(name):
    return page.find_element(By.ID, name)


def wait(condition, what, seconds=60):
    WebDriverWait(page, seconds).until(lambda _: condition(), what)


def fill(name, value):
    # A user's way: what is there is replaced key by key.
    at(name).send_keys(Keys.CONTROL, "a")
    at(name).send_keys(str(value))


def turns(kind):
    return [one.get_property("textContent") for one in page.find_elements(By.CLASS_NAME, kind)]


def send(text, key=True):
    at("text").send_keys(text)
    at("text").send_keys(Keys.ENTER) if key else at("send").click()
    wait(lambda: at("send").is_enabled(), "the answer does not end")


def check_probabilities():
    """Each token of the last answer has its probability, and the likeliest in its place."""
    spans = page.find_elements(By.CLASS_NAME, "assistant")[-1].find_elements(By.TAG_NAME, "span")
    assert spans
    for span in spans:
        lines = span.get_attribute("title").split("\n")
        tokens = []  # of each, its share and those of the likeliest in its place
        for line in lines:
            found = re.fullmatch(r'(  )?("(?:[^"\\]|\\.)*") ([0-9.]+)%', line)
            assert found and isinstance(json.loads(found[2]), str), lines
            tokens[-1].append(float(found[3])) if found[1] else tokens.append([float(found[3])])
        for own, *others in tokens:  # tokens of one text are one of the others
            assert 1 <= len(others) <= 5 and others == sorted(others, reverse=True) and own <= others[0] <= 100, lines
        colour = span.value_of_css_property("background-color")
        assert colour.startswith("rgb") and colour != "rgba(0, 0, 0, 0)", colour
    return len(spans)


def picture(suffix=""):
    if arguments.picture:
        page.save_screenshot(arguments.picture.replace(".png", suffix + ".png"))


def check_talk():
    fill("temperature", 0)
    fill("tokens", 40)
    send("Say two")
    assert turns("user") == ["Say two"] and turns("assistant") == ["two 😀2"], turns("assistant")
    check_probabilities()
    send("Again", key=False)
    assert turns("assistant") == ["two 😀2"] * 2, turns("assistant")
    picture()
    # Shift and Enter is a new line, not the end.
    at("text").send_keys("a", Keys.SHIFT, Keys.ENTER, Keys.NULL, "b")
    assert at("text").get_property("value") == "a\nb", at("text").get_property("value")
    fill("text", Keys.BACKSPACE)
    # An error: what was asked can be sent again, and the conversation is as before.
    fill("temperature", -1)
    send("Again")
    assert len(turns("error")) == 1 and "temperature" in turns("error")[0], turns("error")
    assert at("text").get_property("value") == "Again" and len(turns("user")) == 2
    picture("_error")
    fill("temperature", 0)
    at("send").click()
    wait(lambda: len(turns("assistant")) == 3 and at("send").is_enabled(), "no answer after an error")
    assert turns("assistant")[2] and len(turns("error")) == 1, (turns("assistant"), turns("error"))
    check_probabilities()
    at("clear").click()
    assert not turns("user") and not turns("assistant") and not turns("error")
    send("Say one")
    assert turns("assistant") == ["one ü1"]
    # A text that is continued.
    at("clear").click()
    at("plain").click()
    send("Question: colour of grass", key=False)
    check_probabilities()
    at("plain").click()
    at("clear").click()
    # What is stopped was said.
    fill("tokens", 100000)
    at("plain").click()
    at("text").send_keys("x")
    at("send").click()
    time.sleep(0.05)
    if at("stop").is_enabled():
        at("stop").click()
    wait(lambda: at("send").is_enabled(), "a stop does not end the answer")
    at("plain").click()
    fill("tokens", 40)
    at("clear").click()
    send("Say two")
    assert turns("assistant") == ["two 😀2"]


def check_key():
    wait(lambda: at("locked").is_displayed(), "no field for the key")
    fill("key", "wrong")
    send("Say two")
    assert "token" in turns("error")[-1], turns("error")
    fill("key", arguments.key)
    at("key").send_keys(Keys.TAB)
    wait(lambda: at("model").find_elements(By.TAG_NAME, "option"), "no models by the key")
    picture("_key")
    at("clear").click()
    fill("text", Keys.BACKSPACE)


def check_hostile():
    fill("temperature", 0)
    fill("tokens", 400)
    send("Say html")
    assert turns("assistant") == [arguments.hostile], turns("assistant")
    check_probabilities()
    picture("_hostile")
    # It is text: no element was made of it, and no script ran.
    talk = at("talk")
    assert not talk.find_elements(By.CSS_SELECTOR, ":not(div):not(span)"), talk.get_property("innerHTML")
    time.sleep(0.5)
    assert page.title == "Tessera" and page.execute_script("return window.owned") is None
    send(arguments.hostile)  # as a question, which is an error or is answered
    assert turns("user")[-1] == arguments.hostile or turns("error")
    assert page.title == "Tessera" and page.execute_script("return window.owned") is None


try:
    page.get(f"http://127.0.0.1:{arguments.port}/")
    assert page.title == "Tessera"
    if arguments.key:
        check_key()
    wait(lambda: at("model").find_elements(By.TAG_NAME, "option"), "no models")
    check_hostile() if arguments.hostile else check_talk()
    # Refused requests are in the log; nothing else went wrong.
    wrong = [entry["message"] for entry in page.get_log("browser") if entry["level"] == "SEVERE"
             and not re.search(r"favicon|status of 40[01]", entry["message"])]
    assert not wrong, wrong
    storage = page.execute_script("return localStorage.length + sessionStorage.length + document.cookie.length")
    assert storage == 0, "the page keeps something"
    print("Chromium", page.capabilities["browserVersion"], "has talked with the page")
finally:
    page.quit()
