"""A program that plays a recorded conversation: it reads what it expects and writes what was recorded.

The file named by FAKE_STEPS holds a list of steps. `read`: wait for a line of this type or method. `reply`,
`error`: answer the request that was read. `echo`: write what was read, with more fields. `write`: a line as
it is. `repeat`: a text and how often, as one line. `spawn`: a child in a session of its own. `exit`,
`hang`: the end.
"""

import json
import os
import subprocess
import sys
import time
from typing import Any


def play(steps: list[dict[str, Any]]) -> None:
    last: dict[str, Any] = {}
    for step in steps:
        match step:
            case {"read": name}:
                last = read(name)
                remember(last)
            case {"reply": result}:
                write({"id": last["id"], "result": result})
            case {"error": error}:
                write({"id": last["id"], "error": error})
            case {"echo": fields}:
                write({**last, **fields})
            case {"write": value}:
                write(value)
            case {"repeat": [text, times]}:
                write(text * times)
            case {"stderr": text}:
                print(text, file=sys.stderr, flush=True)
            case {"spawn": path}:
                child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
                with open(path, "w") as file:
                    file.write(str(child.pid))
            case {"exit": code}:
                sys.exit(code)
            case {"hang": _}:
                time.sleep(1000)
            case _:
                sys.exit(f"unknown step {step}")


def read(name: str) -> dict[str, Any]:
    for line in sys.stdin:
        value: dict[str, Any] = json.loads(line)
        if name in (value.get("type"), value.get("method")) or (name == "answer" and "method" not in value):
            return value
    sys.exit(f"the end of the input came before {name}")


def remember(value: dict[str, Any]) -> None:
    with open(os.environ["FAKE_STEPS"] + ".read", "a") as file:
        file.write(json.dumps(value) + "\n")


def write(value: Any) -> None:
    print(value if isinstance(value, str) else json.dumps(value), flush=True)


if __name__ == "__main__":
    if "--version" in sys.argv:
        print(os.environ.get("FAKE_VERSION", "1.0.0"))
    else:
        with open(os.environ["FAKE_STEPS"] + ".arguments", "w") as arguments:
            json.dump(sys.argv[1:], arguments)
        with open(os.environ["FAKE_STEPS"]) as given:
            play(json.load(given))
