// Programs of others talk with the server: litellm, and a browser with the page. They are hidden,
// and skipped where these are not installed (docs/testing.md).
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"
#include "served.hpp"
#include "skip.hpp"
#include "support.hpp"
#include "trained.hpp"

using generation_test::trained;
using nlohmann::json;
using server_test::Served;
using tessera::testing::Folder;
using tessera::testing::skip;

namespace {

namespace fs = std::filesystem;

/// A Python that has the module; empty: there is none.
std::string python_with(const std::string& module) {
  std::vector<std::string> all = {TESSERA_SOURCE_FOLDER "/venv/bin/python", "python3"};
  if (const char* const named = std::getenv("TESSERA_REFERENCE_PYTHON")) {
    all = {named};
  }
  for (const std::string& python : all) {
    const std::string line = "'" + python + "' -c 'import " + module + "' >/dev/null 2>&1";
    if (std::system(line.c_str()) == 0) {  // NOLINT(bugprone-command-processor)
      return python;
    }
  }
  return {};
}

/// Runs a script of tests/reference, and fails with what it says. 77: it was skipped.
int run_script(const std::string& python, const std::string& script, const std::string& words) {
  const std::string line =
      "'" + python + "' " + TESSERA_SOURCE_FOLDER "/tests/reference/" + script + " " + words;
  const int status = std::system(line.c_str());  // NOLINT(bugprone-command-processor)
  INFO(line);
  REQUIRE(WIFEXITED(status));
  const int code = WEXITSTATUS(status);
  CHECK((code == 0 || code == 77));
  return code;
}

std::string secret_file(const Folder& folder, const std::string& secret) {
  std::string path = folder.write("token", secret + "\n");
  fs::permissions(path, fs::perms::owner_read | fs::perms::owner_write);
  return path;
}

/// Where pictures of the page go; empty: none are made.
std::string picture(const std::string& name) {
  const char* const folder = std::getenv("TESSERA_PAGE_PICTURES");
  return folder == nullptr ? "" : " --picture '" + std::string(folder) + "/" + name + ".png'";
}

void talk_with_page(const Served& server, const std::string& words) {
  const std::string python = python_with("selenium");
  if (python.empty() ||
      run_script(python, "check_page.py", std::to_string(server.port) + " " + words) == 77) {
    skip("the page needs Chromium, chromedriver and a Python with selenium");
  }
}

/// A model whose answer is markup.
std::string model_that_writes(const Folder& folder, const std::string& answer) {
  fs::copy(fs::path(trained().checkpoint).parent_path().parent_path() / "tokenizer",
           folder.path() / "tokenizer");
  folder.write("chats.jsonl", generation_test::conversation({"Say html", answer}).dump() + "\n");
  folder.write("run.toml", R"([model]
dim = 48
layers = 2
heads = 4
[data]
tokenizer = "tokenizer"
jsonl = ["chats.jsonl"]
seq_len = 320
validation = 0
[train]
steps = 150
batch = 1
[optimizer]
lr = 1e-2
warmup = 10
[log]
metrics = ""
[checkpoint]
folder = "checkpoints"
every = 0
)");
  generation_test::Trained::succeed("train " + folder / "run.toml");
  generation_test::Trained::succeed("checkpoint export " + folder / "checkpoints/step-00000150" +
                                    " --to " + folder / "model");
  return folder / "model";
}

}  // namespace

TEST_CASE("litellm and its proxy talk with the server", "[.litellm]") {
  const std::string python = python_with("litellm");
  if (python.empty()) {
    skip("there is no Python with litellm");
    return;
  }
  const Folder folder;
  const Served server(trained().long_model,
                      {"--token-file", secret_file(folder, "secret"), "--tokens", "500",
                       "--chat-template", server_test::template_with_calls()});
  run_script(python, "check_litellm.py",
             "http://127.0.0.1:" + std::to_string(server.port) + "/v1 secret");
}

TEST_CASE("a browser talks with the page", "[.browser]") {
  const Served server(trained().long_model, {"--page", "--tokens", "5000"});
  talk_with_page(server, picture("page"));
}

TEST_CASE("a browser talks with the page by a key", "[.browser]") {
  const Folder folder;
  const Served server(trained().long_model, {"--page", "--token-file",
                                             secret_file(folder, "a secret"), "--tokens", "5000"});
  talk_with_page(server, "--key 'a secret'" + picture("page_key"));
}

TEST_CASE("what a model writes is text in a browser, never markup", "[.browser]") {
  const Folder folder;
  const std::string hostile =
      "<script>window.owned=1</script><img src=x onerror=\"window.owned=2;document.title=3\">"
      "</div></main><b>&lt;\\u003c";
  const Served server(model_that_writes(folder, hostile), {"--page"});
  talk_with_page(server, "--hostile '" + hostile + "'" + picture("page"));
}
