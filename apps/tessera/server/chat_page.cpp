module;
#include <fmt/format.h>
#include <sys/random.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tessera/limits.hpp>
#include <utility>
module tessera.app.server;

import :chat_page;
import tessera.base;

namespace tessera::app {
namespace {

// What a model writes becomes text nodes only, so nothing of it can be markup.
constexpr std::string_view page = R"page(<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Tessera</title>
<style nonce="NONCE">
body { font-family: sans-serif; max-width: 60em; margin: 1em auto; padding: 0 1em; }
.turn { white-space: pre-wrap; overflow-wrap: anywhere; margin: 0.6em 0; padding: 0.6em; border-radius: 0.4em; }
.user { background: #eef; }
.error { background: #fdd; }
.assistant { background: #f7f7f7; line-height: 1.5; }
textarea { width: 100%; box-sizing: border-box; }
form { margin: 1em 0; }
label { margin-right: 1em; }
input[type=number] { width: 5em; }
.note { color: #555; font-size: 85%; }
.thoughts { font-style: italic; }
</style>
</head>
<body>
<h1>Tessera</h1>
<p class="note">Green tokens were likely, red ones were not. Rest on one to see its probability and what else was likely.</p>
<main id="talk" aria-live="polite"></main>
<form id="ask">
<textarea id="text" rows="4" aria-label="Text" autofocus></textarea>
<p id="locked" hidden><label>Key <input id="key" type="password" autocomplete="off"></label></p>
<p>
<label>Model <select id="model"></select></label>
<label>Temperature <input id="temperature" type="number" min="0" max="2" step="0.1" value="1"></label>
<label>Tokens <input id="tokens" type="number" min="1" max="100000" value="512"></label>
<label><input id="plain" type="checkbox"> continue the text</label>
</p>
<p><button id="send">Send</button> <button id="stop" type="button" disabled>Stop</button> <button id="clear" type="button">New conversation</button></p>
</form>
<script nonce="NONCE">
"use strict";
const at = (id) => document.getElementById(id);
let messages = [];
let running = null;

function add(kind, text) {
  const turn = document.createElement("div");
  turn.className = "turn " + kind;
  turn.textContent = text;
  at("talk").append(turn);
  turn.scrollIntoView({block: "end"});
  return turn;
}

const percent = (logprob) => (100 * Math.exp(logprob)).toFixed(1) + "%";

// A text of one token, or of several that have a character together; tokens that end a text have none.
function addText(turn, text, tokens) {
  const span = document.createElement("span");
  span.textContent = text;
  const least = Math.min(0, ...tokens.map((token) => token.logprob));
  span.style.backgroundColor = tokens.length === 0 ? "" : "hsl(" + (120 * Math.exp(least)).toFixed(0) + " 80% 88%)";
  const lines = [];
  for (const token of tokens) {
    lines.push(JSON.stringify(token.text) + " " + percent(token.logprob));
    for (const other of token.others) {
      lines.push("  " + JSON.stringify(other.text) + " " + percent(other.logprob));
    }
  }
  span.title = lines.join("\n");
  turn.append(span);
  return span;
}

function tokensOf(choice) {
  const found = choice.logprobs;
  if (!found) {
    return [];
  }
  if (found.content) {
    return found.content.map((one) => ({
      text: one.token, logprob: one.logprob,
      others: (one.top_logprobs || []).map((other) => ({text: other.token, logprob: other.logprob}))}));
  }
  return found.tokens.map((text, i) => ({
    text, logprob: found.token_logprobs[i],
    // An object lists members whose names are numbers first.
    others: Object.entries(found.top_logprobs[i] || {}).map(([other, logprob]) => ({text: other, logprob}))
      .sort((one, other) => other.logprob - one.logprob)}));
}

async function* eventsOf(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const {done, value} = await reader.read();
    if (done) {
      return;
    }
    text += value;
    const events = text.split("\n\n");
    text = events.pop();
    for (const event of events) {
      if (event.startsWith("data: ") && event !== "data: [DONE]") {
        yield JSON.parse(event.slice(6));
      }
    }
  }
}

const withKey = (headers) => at("key").value === "" ? headers : {...headers, Authorization: "Bearer " + at("key").value};

async function problemOf(response) {
  if (response.status === 401) {
    at("locked").hidden = false;
    at("key").focus();
  }
  return new Error((await response.json()).error.message);
}

async function ask(path, body, turn, hear) {
  const response = await fetch(path, {
    method: "POST", headers: withKey({"Content-Type": "application/json"}), body: JSON.stringify(body),
    credentials: "omit", signal: running.signal});
  if (!response.ok) {
    throw await problemOf(response);
  }
  let tokens = [];
  for await (const event of eventsOf(response)) {
    if (event.error) {
      throw new Error(event.error.message);
    }
    for (const choice of event.choices) {
      tokens.push(...tokensOf(choice));
      const text = (choice.delta ? choice.delta.content : choice.text) || "";
      const thoughts = (choice.delta && choice.delta.reasoning_content) || "";
      if (thoughts !== "") {
        addText(turn, thoughts, text === "" ? tokens.splice(0) : []).className = "thoughts";
      }
      if (text !== "") {
        addText(turn, text, tokens.splice(0));
        hear(text);
      }
    }
  }
}

async function send() {
  const text = at("text").value;
  if (text === "" || running) {
    return;
  }
  const plain = at("plain").checked;
  const body = {model: at("model").value, stream: true, max_tokens: Number(at("tokens").value),
                temperature: Number(at("temperature").value)};
  at("text").value = "";
  const asked = add("user", text);
  const turn = add("assistant", "");
  let answer = "";
  const hear = (part) => { answer += part; };
  running = new AbortController();
  at("send").disabled = true;
  at("stop").disabled = false;
  try {
    if (plain) {
      await ask("/v1/completions", {...body, prompt: text, logprobs: 5}, turn, hear);
    } else {
      const all = [...messages, {role: "user", content: text}];
      try {
        await ask("/v1/chat/completions",
                  {...body, messages: all, logprobs: true, top_logprobs: 5}, turn, hear);
      } finally {
        // What was heard before it was stopped is said.
        if (answer !== "") {
          messages = [...all, {role: "assistant", content: answer}];
        }
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") {
      add("error", error.message);
    }
    if (turn.textContent === "") {  // it can be sent again
      turn.remove();
      asked.remove();
      at("text").value = at("text").value || text;
    }
  }
  running = null;
  at("send").disabled = false;
  at("stop").disabled = true;
}

at("ask").addEventListener("submit", (event) => { event.preventDefault(); send(); });
at("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey) {
    event.preventDefault();
    send();
  }
});
at("stop").addEventListener("click", () => { if (running) { running.abort(); } });
at("clear").addEventListener("click", () => { messages = []; at("talk").replaceChildren(); });
async function listModels() {
  const response = await fetch("/v1/models", {headers: withKey({}), credentials: "omit"});
  if (!response.ok) {
    throw await problemOf(response);
  }
  const models = await response.json();
  at("model").replaceChildren(...models.data.map((model) => new Option(model.id, model.id)));
}

at("key").addEventListener("change", () => listModels().catch((error) => add("error", error.message)));
listModels().catch((error) => { if (at("locked").hidden) { add("error", error.message); } });
</script>
</body>
</html>
)page";

/// 128 bits as hexadecimal digits.
std::string drawn_number() {
  std::array<unsigned char, 16> bytes = {};
  if (getrandom(bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) {
    fail({.thing = "page", .wrong = "the system draws no random numbers: " + reason_of(errno)});
  }
  std::string digits;
  for (const unsigned char byte : bytes) {
    digits += fmt::format("{:02x}", byte);
  }
  return digits;
}

}  // namespace

HttpAnswer chat_page() {
  constexpr std::string_view mark = "NONCE";
  const std::string number = drawn_number();
  std::string body(page);
  for (std::size_t found = body.find(mark); found != std::string::npos; found = body.find(mark)) {
    body.replace(found, mark.size(), number);
  }
  return {
      .type = "text/html; charset=utf-8",
      .body = std::move(body),
      .headers = {{"Content-Security-Policy",
                   fmt::format("default-src 'none'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
                               "connect-src 'self'; base-uri 'none'; form-action 'none'; "
                               "frame-ancestors 'none'",
                               number)},
                  {"X-Content-Type-Options", "nosniff"},
                  {"X-Frame-Options", "DENY"},
                  {"Referrer-Policy", "no-referrer"},
                  {"Cross-Origin-Opener-Policy", "same-origin"},
                  {"Cross-Origin-Resource-Policy", "same-origin"},
                  {"Cache-Control", "no-store"}}};
}

}  // namespace tessera::app
