"""The JavaScript SDK, as npm has it today, against the same server."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.e2e.fake_model import FakeModel, breaks_off_after, refuses, says
from tests.e2e.server import LiveServer

pytestmark = pytest.mark.slow

SCRIPT = r"""
import OpenAI from "openai";
const [baseURL, word] = process.argv.slice(2);
const client = new OpenAI({ baseURL, apiKey: "none" });
const held = (name) => ({ headers: { "X-Conversation-Id": name } });
const user = (content) => ({ role: "user", content });
const ask = (content, more = {}) => ({ model: "builtin/scripted", messages: [user(content)], ...more });
const told = {};

told.models = (await client.models.list()).data.map((model) => model.id);

await client.chat.completions.create(ask(`I am ${word}`), held(word));
let text = "", usage = null, finish = null;
const options = { stream: true, stream_options: { include_usage: true } };
for await (const chunk of await client.chat.completions.create(ask("!remember", options), held(word))) {
  text += chunk.choices[0]?.delta?.content ?? "";
  finish = chunk.choices[0]?.finish_reason ?? finish;
  usage = chunk.usage ?? usage;
}
told.stream = { text, finish, counted: usage.total_tokens > 0 };

const tools = [{ type: "function", function: { name: "weather", parameters: { type: "object" } } }];
const messages = [{ role: "user", content: `${word}-tools\n!tool weather {"city": "Rome"}\n!say done` }];
const first = await client.chat.completions.create(
  { model: "builtin/scripted", messages, tools }, held(`${word}-tools`));
const message = first.choices[0].message;
messages.push(message, { role: "tool", tool_call_id: message.tool_calls[0].id, content: "rain" });
const second = await client.chat.completions.create(
  { model: "builtin/scripted", messages, tools }, held(`${word}-tools`));
told.tools = { finish: first.choices[0].finish_reason, text: second.choices[0].message.content };

const failure = async (work) => {
  try { await work(); return null; }
  catch (error) {
    const { status = null, code, param = null } = error;
    return { name: error.constructor.name, status, code, param };
  }
};
told.unknown = await failure(() => client.chat.completions.create(ask("hi", { model: "nobody" })));
told.range = await failure(() => client.chat.completions.create(ask("hi", { temperature: 9 })));
told.broken = await failure(async () => {
  const request = ask(`${word}-broken`, { model: "remote", stream: true });
  for await (const _ of await client.chat.completions.create(request, held(`${word}-broken`)));
});
const again = await client.chat.completions.create(
  ask(`${word}-again`, { model: "remote" }), held(`${word}-again`));
told.again = again.choices[0].message.content;
console.log(JSON.stringify(told));
"""


@pytest.fixture(scope="module")
def node_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With the newest SDK in it."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("NOT TESTED: the JavaScript SDK needs node and npm, and they are not here")
    folder = tmp_path_factory.mktemp("node")
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    try:
        line = [npm, "install", "--no-audit", "--no-fund", "--ignore-scripts", "openai"]
        done = subprocess.run(line, cwd=folder, capture_output=True, text=True, timeout=120)
    except subprocess.TimeoutExpired:
        pytest.skip("NOT TESTED: npm did not install the JavaScript SDK within two minutes")
    if done.returncode != 0:
        pytest.skip(f"NOT TESTED: npm could not install the JavaScript SDK: {done.stderr[-300:]}")
    return folder


def test_the_javascript_sdk_works(served: LiveServer, fake: FakeModel, node_folder: Path, word: str) -> None:
    fake.on(f"{word}-broken", breaks_off_after("one "))
    again = fake.on(f"{word}-again", refuses(500), says("yes"))
    (node_folder / "chat.js").write_text(SCRIPT)
    line = ["node", "chat.js", f"{served.url}/v1", word]
    done = subprocess.run(line, cwd=node_folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    received = json.loads(done.stdout)
    assert received["models"][0] == "builtin/scripted"
    assert received["stream"] == {"text": f"I remember: I am {word}", "finish": "stop", "counted": True}
    assert received["tools"] == {"finish": "tool_calls", "text": "done"}
    assert received["unknown"] == {
        "name": "NotFoundError",
        "status": 404,
        "code": "model_not_found",
        "param": "model",
    }
    assert received["range"] == {
        "name": "BadRequestError",
        "status": 400,
        "code": "invalid_request",
        "param": "temperature",
    }
    assert received["broken"]["code"] == "model_error"
    # It sent this again by itself: one turn, two tries.
    assert received["again"] == "yes"
    assert (len(again.requests), served.tries(f"{word}-again")) == (2, ["failed", "committed"])
